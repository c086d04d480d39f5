"""What can go wrong?

::

    PipelineError          said to the person who started it, without a traceback
    ├── JavaMissing        no Java, or one that is too old; says how to get one
    ├── BadInput           nothing to read there, or not what was promised
    └── BadSetting         an option that makes no sense
"""


class PipelineError(Exception):
    pass


class JavaMissing(PipelineError):
    pass


class BadInput(PipelineError):
    pass


class BadSetting(PipelineError):
    pass
