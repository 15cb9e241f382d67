"""Leases: a row that a worker has claimed carries a token and an end time; statements for every table with them.

A claim sets both, each later write proves the token, and a row whose lease ran out may be claimed again. Where crashes
are counted, the claim counts one before the work, so that a killed process leaves it behind; giving back takes it off.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import TextClause, text

TERM = "clock_timestamp() + make_interval(secs => :lease)"
"""The end of a lease of `lease` seconds; from the statement on, since a transaction may have begun long before."""
UNCOUNTED = "crash_count = greatest(crash_count - 1, 0)"
"""Takes off the crash that the claim counted, since the work ended without one."""
RESTARTED = """attempts = 0, crash_count = 0, due_at = now(), enqueued_at = null,
    lease_token = null, lease_until = null"""
"""Due at once with a clean record; work under way loses its token, and with it the right to write."""


@dataclass(frozen=True, kw_only=True)
class Leased:
    """A table with leases; its methods make statements that take the parameters of `rows`, `token` and `lease`.

    Rows are locked in the order of their key, everywhere, so that no two transactions block each other; and weakly
    enough (`no key update`) that rows which refer to them can be written meanwhile.
    """

    table: str
    rows: str = "id = any(:ids)"
    """The condition for the rows that a statement is about."""
    key: str = "id"
    token: str = "lease_token"  # noqa: S105 - the name of a column
    until: str = "lease_until"
    crashes: bool = True
    """Whether claims are counted in `crash_count`."""

    def claim(
        self, condition: str = "true", *, also: str = "", returning: str = "", wait: bool = False
    ) -> TextClause:
        """Claim rows without a lease that meet `condition`; `also` are further assignments.

        A row that another transaction has locked is skipped, unless `wait`.
        """
        count = ", crash_count = crash_count + 1" if self.crashes else ""
        return self._update(
            f"{self.token} = :token, {self.until} = {TERM}{count}{also and ', ' + also}",
            f"{self.rows} and ({self.until} is null or {self.until} < now()) and {condition}",
            returning or self.key,
            "" if wait else "skip locked",
        )

    def renew(self, *, also: str = "") -> TextClause:
        """Extend the lease of rows that still have our token; `also` are further assignments."""
        return self._update(f"{self.until} = {TERM}{also and ', ' + also}", self._owned_rows(), self.key)

    def lock(self) -> TextClause:
        """Lock the rows that still have our token: only these may be written in this transaction."""
        return text(self._locked(self._owned_rows()))

    def give_back(self, assignments: str, *, condition: str = "true", returning: str = "") -> TextClause:
        """End the lease of rows that still have our token."""
        return self._update(
            self._let_go(assignments), f"{self._owned_rows()} and {condition}", returning or self.key
        )

    def expire(self, assignments: str, *, condition: str, returning: str = "") -> TextClause:
        """End leases that ran out; on the control role."""
        lost = f"{self.until} < now() and {condition}"
        return self._update(self._let_go(assignments), lost, returning or self.key, "skip locked")

    def mark_unsent(self) -> TextClause:
        """Note that a message about these rows could not be published; the pump sends one on its next tick."""
        return self._update("enqueued_at = null", f"{self.rows} and {self.token} is null", self.key)

    def forget_messages(self, condition: str) -> TextClause:
        """Note as lost the messages that no worker took for `resend` seconds; on the control role."""
        old = f"enqueued_at < now() - make_interval(secs => :resend) and ({self.until} is null or {self.until} < now())"
        return self._update("enqueued_at = null", f"{condition} and {old}", self.key, "skip locked")

    def _owned_rows(self) -> str:
        return f"{self.rows} and {self.token} = :token"

    def _let_go(self, assignments: str) -> str:
        return f"{self.token} = null, {self.until} = null{assignments and ', ' + assignments}"

    def _locked(self, condition: str, skip: str = "") -> str:
        return f"select {self.key} from {self.table} where {condition} order by {self.key} for no key update {skip}"

    def _update(self, assignments: str, condition: str, returning: str, skip: str = "") -> TextClause:
        return text(f"""
            update {self.table} set {assignments} where ({self.key}) in ({self._locked(condition, skip)})
            returning {returning}""")
