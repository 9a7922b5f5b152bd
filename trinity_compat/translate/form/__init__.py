"""A launch made from nothing: the fields of a form become veRL's keys, a Trinity YAML and a script.

from trinity_compat.translate.form import defaults, made_from
"""

from trinity_compat.translate.form.fields import BASIC, FIELDS, MORE, SIDES, FormField, defaults
from trinity_compat.translate.form.made import made_from
from trinity_compat.translate.form.result import FormRemark, FormResult

__all__ = [
    "BASIC",
    "FIELDS",
    "MORE",
    "SIDES",
    "FormField",
    "FormRemark",
    "FormResult",
    "defaults",
    "made_from",
]
