"""
Delivery of a topic to subscriptions, at least once, with consumers that come and go.

===================  ===========================================================================
`state.py`           what is confirmed: one offset and the holes above it (pure)
`saved.py`           where that is kept
`subscription.py`    who gets which message, redelivery, dead letters
`consumer.py`        what a consumer holds in its hands
===================  ===========================================================================
"""
