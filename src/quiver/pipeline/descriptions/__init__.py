"""
Descriptions of pipeline files, for people, editors and programs.

======================  ===================================================================
module                  purpose
======================  ===================================================================
`words.py`              the values of `explain` in words
`json_schema.py`        the JSON schema of a pipeline file
`key_descriptions.py`   the descriptions of its keys, from the docstrings of the settings
======================  ===================================================================
"""
