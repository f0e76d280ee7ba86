"""Who asks, and whether RBAC grants it: tokens, roles and bindings, and what each user has really used."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.statuses import ApiError, unauthorized
from tests.kubernetes.store import Store


@dataclass(frozen=True)
class User:
    """A caller; one of the group system:masters may do everything."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


@dataclass(frozen=True)
class Use:
    """What a request needs to be granted. A subresource is part of the resource: `pods/log`."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def refusal(self, user: User) -> str:
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        wanted = f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}" {where}'
        return f'User "{user.name}" {wanted}'


class Access:
    """The tokens of a cluster, and its RBAC."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._users: dict[str, User] = {}
        self.used: dict[str, set[Use]] = {}
        """By user's name, what it asked for and was granted, without names of objects."""

    def token(self, user: User) -> str:
        token = secrets.token_urlsafe(24)
        self._users[token] = user
        return token

    def expire(self, token: str) -> None:
        """Refuse a token from now on."""
        del self._users[token]

    def user_of(self, authorization: str) -> User:
        scheme, _, token = authorization.partition(" ")
        user = self._users.get(token)
        if scheme != "Bearer" or user is None:
            raise unauthorized()
        return user

    def require(self, user: User, use: Use) -> None:
        """Raise 403 as the real server words it, unless a role grants the use."""
        if not self.grants(user, use):
            qualified = use.resource.partition("/")[0] + (f".{use.group}" if use.group else "")
            named = f'{qualified} "{use.name}"' if use.name else qualified
            details = {"name": use.name, "group": use.group, "kind": use.resource.partition("/")[0]}
            shown = {key: value for key, value in details.items() if value}
            raise ApiError(403, "Forbidden", f"{named} is forbidden: {use.refusal(user)}", shown)
        if user != ADMIN:
            self.used.setdefault(user.name, set()).add(Use(use.verb, use.group, use.resource))

    def grants(self, user: User, use: Use) -> bool:
        if "system:masters" in user.groups:
            return True
        return any(_allows(rule, use) for rule in self._rules(user, use.namespace))

    def _rules(self, user: User, namespace: str) -> Iterator[Mapping[str, Any]]:
        bindings = self._store.all(kinds.CLUSTER_ROLE_BINDING)
        if namespace:
            bindings = [*bindings, *self._store.all(kinds.ROLE_BINDING, namespace)]
        for binding in bindings:
            if any(_names(subject, user) for subject in binding.get("subjects", ())):
                role = binding["roleRef"]
                kind = kinds.ROLE if role["kind"] == "Role" else kinds.CLUSTER_ROLE
                held = self._store.find(kind, namespace if kind.namespaced else "", role["name"])
                yield from (held or {}).get("rules", ())


def service_account(namespace: str, name: str) -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


def _names(subject: Mapping[str, str], user: User) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return subject["name"] in ((user.name,) if subject["kind"] == "User" else user.groups)


def _allows(rule: Mapping[str, Any], use: Use) -> bool:
    resources = rule.get("resources", ())
    subresource = use.resource.partition("/")[2]
    return (
        _has(rule.get("verbs", ()), use.verb)
        and _has(rule.get("apiGroups", ()), use.group)
        and (_has(resources, use.resource) or bool(subresource and f"*/{subresource}" in resources))
        and (not rule.get("resourceNames") or use.name in rule["resourceNames"])
    )


def _has(listed: Iterable[str], wanted: str) -> bool:
    return "*" in listed or wanted in listed
