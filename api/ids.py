"""The ids of the core's messages as the routes take them: the same rules, described in the schema."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from muster.commands import USER_ID, USER_ID_DESCRIBED, USER_ID_PATTERN
from muster.orders import ORDER_ID_DESCRIBED, ORDER_ID_PATTERN

UserId = Annotated[
    str, Field(pattern=f"^{USER_ID_PATTERN}$", description=USER_ID_DESCRIBED), AfterValidator(USER_ID.take)
]
OrderId = Annotated[str, Field(pattern=f"^{ORDER_ID_PATTERN}$", description=ORDER_ID_DESCRIBED)]
