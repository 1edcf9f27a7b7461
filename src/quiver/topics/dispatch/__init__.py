"""
Delivery of a topic to subscriptions, at least once, with consumers that join and leave.

===================  ===========================================================================
`state.py`           the confirmed offsets: all below one offset, and some above it (pure)
`saved.py`           the files of saved subscriptions
`subscription.py`    which consumer gets which message, redelivery, dead letters
`consumer.py`        a consumer, and the messages that it has to acknowledge
===================  ===========================================================================
"""
