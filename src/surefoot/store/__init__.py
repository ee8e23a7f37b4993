"""What has been trained, on disk. The only room that knows where things lie."""

from surefoot.store.draft import Draft
from surefoot.store.found import Found, State
from surefoot.store.locks import ClaimedError
from surefoot.store.store import Store

__all__ = ["ClaimedError", "Draft", "Found", "State", "Store"]
