"""Operators that native code does not have, in terms of others. Importing the package fills the table of late forms."""

from ingot.dynamo.forms import (  # noqa: F401
    operator_forms,
    pooling_forms,
)
