"""Types as Pydantic reads them."""

from typing import Any

from pydantic import TypeAdapter


def whole_adapter(hint: Any) -> TypeAdapter[Any]:
    """Have Pydantic read a type with all that it refers to. One that cannot be read raises `PydanticUserError` or
    `NameError` here, and not when it is first used.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    adapter.rebuild(raise_errors=True)
    return adapter
