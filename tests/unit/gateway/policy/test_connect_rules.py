"""Rules about connections: networks, methods and paths of requests, and what the operator names."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.policy import Policy
from gateway.policy.decision import Decision, Facts
from gateway.policy.judge import compile_grants
from gateway.policy.narrow import narrow_rule
from tests.unit.gateway.policy.test_conditions import document, policy


def rule(effect: str = "allow", **fields: Any) -> dict[str, Any]:
    return {"tools": ["connect"], "effect": effect, **fields}


def asked(judge: Policy, host: str, port: int = 80, **request: Any) -> Decision:
    return judge.judge("connect", {"host": host, "port": port, **request})


def get(path: str, method: str = "GET") -> dict[str, str]:
    return {"method": method, "path": path}


@pytest.mark.parametrize(
    "host", ["10.1.2.3", "::ffff:10.1.2.3", "[::ffff:a01:203]", "0xa010203", "10.66051", "012.1.2.3"]
)
def test_a_network_matches_its_addresses_in_all_spellings(host: str) -> None:
    assert asked(policy(rule(hosts=["10.0.0.0/8"])), host).verdict == "allow"
    assert asked(policy(rule(), rule("deny", hosts=["10.0.0.0/8"])), host).rule == "r1"
    assert asked(policy(rule(hosts=["11.0.0.0/8", "*.example.com", "[fd00::/8]"])), host).verdict == "deny"


def test_many_networks_and_names_stand_side_by_side() -> None:
    judge = policy(rule(hosts=["10.0.0.0/8:443", "[fd00::/8]:443", "10.0.0.7", "example.com", "*.example.com:8080"]))
    allowed = [("10.9.9.9", 443), ("fd00::1", 443), ("10.0.0.7", 22), ("example.com", 1), ("a.example.com", 8080)]
    assert [asked(judge, host, port).verdict for host, port in allowed] == ["allow"] * 5
    denied = [("10.9.9.9", 80), ("fd00::1", 80), ("10.0.0.8", 22), ("9.0.0.1", 443), ("a.example.com", 443)]
    assert [asked(judge, host, port).verdict for host, port in denied] == ["deny"] * 5


def test_methods_and_paths_allow_the_requests_that_they_name_and_no_other() -> None:
    judge = policy(rule(hosts=["api.test"], methods=["GET", "HEAD"], url_paths=["/v1/**"]))
    assert asked(judge, "api.test", **get("/v1/a")).verdict == "allow"
    assert asked(judge, "api.test", **get("/v1/a?x=/../../secret")).verdict == "allow"
    assert asked(judge, "api.test", **get("/x/%2e%2e/v1/a", "head")).verdict == "allow"
    for request in (get("/v1/a", "POST"), get("/v2/a"), get("/v1/../v2"), get("/v1/%2e%2e/v2"), get("/v1/a%2Fb")):
        assert asked(judge, "api.test", **request).verdict == "deny"
    assert "no rule of the policy allows connect: POST api.test:80/v1/a. It allows GET|HEAD api.test /v1/**" in (
        asked(judge, "api.test", **get("/v1/a", "POST")).reason
    )


def test_of_a_raw_tunnel_a_rule_about_requests_allows_nothing_and_may_deny() -> None:
    for about in ({"methods": ["GET"]}, {"url_paths": ["/v1/**"]}):
        assert asked(policy(rule(**about)), "api.test").verdict == "deny"
        assert asked(policy(rule(), rule("deny", **about)), "api.test").rule == "r1"
        assert asked(policy(rule(), rule("ask", **about)), "api.test").verdict == "ask"
        assert asked(policy(rule(), rule("deny", hosts=["b.test"], **about)), "api.test").verdict == "allow"
        assert asked(policy(rule(unless=about)), "api.test").verdict == "deny"
    assert asked(policy(rule()), "api.test").verdict == "allow"


def test_a_path_that_is_not_settled_is_not_known() -> None:
    judge = policy(rule(), rule("deny", url_paths=["/admin/**"]))
    assert asked(judge, "a.test", **get("/public")).verdict == "allow"
    for path in (
        "/admin/x",
        "/admin",
        "/ADMIN/../admin/",
        "/x/%2E%2E/%61dmin",
        "/admin%2Fx",
        "//admin",
        "/admin;/x",
        "*",
    ):
        assert asked(judge, "a.test", **get(path)).rule == "r1", path
    assert asked(policy(rule(hosts=["a.test"])), "a.test", **get("/@scope%2fname")).verdict == "allow"
    assert asked(policy(rule(url_paths=["/**"])), "a.test", **get("/@scope%2fname")).verdict == "allow"
    assert asked(policy(rule(url_paths=["/*"])), "a.test", **get("/@scope%2fname")).verdict == "deny"


@pytest.mark.parametrize(
    "request_",
    [{"method": "GET"}, {"path": "/"}, {"method": 1, "path": "/"}, {"method": "G T", "path": "/"}, get("/", "")],
)
def test_a_request_without_a_method_or_a_path_is_not_judged(request_: dict[str, Any]) -> None:
    assert asked(policy(rule()), "a.test", **request_).rule == "invalid-arguments"


def test_an_expression_sees_a_request_as_rules_do() -> None:
    judge = policy(rule(when="args.method == 'GET' && args.path.startsWith('/v1/')"))
    assert asked(judge, "A.test.", **get("/v1/a")).verdict == "allow"
    for request in (get("/v1/%2e%2e/b"), get("/v1/..%2Fb"), get("/v1/a", "POST"), {}):
        assert asked(judge, "a.test", **request).verdict == "deny"
    assert asked(policy(rule(when="args.host == 'a.test'")), "A.test.").verdict == "allow"


def test_a_command_is_not_held_up_by_rules_about_the_requests_that_it_makes() -> None:
    """To which host, and what it asks of it, is judged when it connects."""
    run = {"tools": ["execute"], "argv": [["curl"]]}

    def curl(*rules: dict[str, Any]) -> str:
        return policy(run, *rules).judge("execute", {"command": "curl http://api.test/v1"}).verdict

    assert curl(rule(hosts=["api.test"], methods=["GET"], url_paths=["/v1"])) == "allow"
    assert curl(rule(hosts=["api.test"], unless={"methods": ["DELETE"]})) == "allow"
    assert curl(rule(), rule("deny", methods=["DELETE"])) == "allow"
    assert curl(rule(), rule("deny", unless={"url_paths": ["/v1"]})) == "allow"
    assert curl(rule(hosts=["b.test"], methods=["GET"])) == "allow"
    assert curl(rule(), rule("deny", hosts=["api.test"])) == "allow"
    judge = policy(run, rule(), rule("deny", hosts=["api.test"]))
    assert asked(judge, "api.test").verdict == "deny"
    assert asked(judge, "b.test").verdict == "allow"


def test_who_is_asked_about_a_host_grants_the_host_and_who_is_asked_about_requests_grants_this_one() -> None:
    call = {"host": "a.test", "port": 80, **get("/v1/*?x=1", "PUT")}
    for asking, about in (
        (rule("ask"), {"hosts": ("a.test:80",)}),
        (rule("ask", methods=["PUT"]), {"hosts": ("a.test:80",), "methods": ("PUT",), "url_paths": ("/v1/[*]",)}),
        (rule("ask", when="args.method == 'PUT'"), {"methods": ("PUT",)}),
        (rule("ask", unless={"methods": ["GET"]}), {"methods": ("PUT",)}),
        (rule("ask", when="host == 'a.test'"), {"methods": None, "url_paths": None}),
    ):
        judge = policy(asking)
        decision = judge.judge("connect", call)
        granted = narrow_rule("connect", call, decision)
        assert granted is not None
        assert {name: getattr(granted, name) for name in about} == about
        grants = compile_grants([granted])
        assert judge.judge("connect", call, None, grants).verdict == "allow"
        other = judge.judge("connect", {**call, "path": "/v2"}, None, grants).verdict
        assert other == ("allow" if granted.methods is None else "ask")
    judge = policy(rule("ask", methods=["PUT"]), rule())
    unsettled = {**call, "path": "/a%2Fb"}
    assert narrow_rule("connect", unsettled, judge.judge("connect", unsettled)) is None
    literal = {"host": "fd00::1", "port": 443}
    granted = narrow_rule("connect", literal, policy(rule("ask")).judge("connect", literal))
    assert granted is not None
    assert granted.hosts == ("[fd00::1]:443",)


@pytest.mark.parametrize(
    "written, connects",
    [
        ([], False),
        ([rule()], True),
        ([rule("ask", hosts=["a.test"])], True),
        ([rule("deny")], False),
        ([rule(mode="shadow")], False),
        ([{"tools": ["execute"]}], False),
    ],
)
def test_there_is_a_network_where_some_rule_in_force_lets_something_pass(
    written: list[dict[str, Any]], connects: bool
) -> None:
    assert policy(*written).connects == connects
    assert Policy(document(), document(*written)).connects == connects


NAMED = [rule(hosts=["10.0.0.0/8:443", "192.168.1.1", "[fd00::/8]", "db.test"])]


@pytest.mark.parametrize(
    "address, port, named",
    [
        ("10.1.2.3", 443, True),
        ("::ffff:10.1.2.3", 443, True),
        ("10.1.2.3", 80, False),
        ("11.1.2.3", 443, False),
        ("192.168.1.1", 1, True),
        ("192.168.1.2", 1, False),
        ("fd00::5", 1, True),
        ("db.test", 1, False),
        ("", 1, False),
        ("fe80::1%eth0", 1, False),
        ("10.1.2.3", 0, False),
    ],
)
def test_the_operator_names_addresses_and_networks_with_their_ports(address: str, port: int, named: bool) -> None:
    assert Policy(document(), document(*NAMED)).names_address(address, port) == named
    assert not Policy(document(*NAMED)).names_address(address, port)
    assert not Policy(document(*NAMED), document()).names_address(address, port)


@pytest.mark.parametrize(
    "operator, tenant",
    [
        ([rule()], []),
        ([rule("ask", hosts=["10.0.0.1"])], []),
        ([rule(hosts=["10.0.0.1"], mode="shadow")], []),
        ([*NAMED, rule("deny", hosts=["10.0.0.1"])], []),
        (NAMED, [rule("deny", hosts=["10.0.0.0/24"])]),
        ([rule(hosts=["10.0.0.1"], when="agent == 'other'")], []),
        ([rule(hosts=["10.0.0.1"], unless={"hosts": ["10.0.0.0/24"]})], []),
        ([rule(hosts=["10.0.0.1"], methods=["GET"])], []),
    ],
)
def test_what_is_not_allowed_for_sure_or_is_denied_is_not_named(
    operator: list[dict[str, Any]], tenant: list[dict[str, Any]]
) -> None:
    assert not Policy(document(*tenant), document(*operator)).names_address("10.0.0.1", 443)
    assert Policy(document(), document(*NAMED)).names_address("10.0.0.1", 443)


def test_conditions_of_the_operator_s_rule_hold_for_the_caller() -> None:
    judge = Policy(document(), document(rule(hosts=["10.0.0.1"], when="agent == 'coder'")))
    assert judge.names_address("10.0.0.1", 443, Facts(agent="coder"))
    assert not judge.names_address("10.0.0.1", 443, Facts(agent="other"))


PUBLIC = {"hosts": ["93.184.216.0/24"]}


@pytest.mark.parametrize(
    "denying, denied",
    [
        (rule("deny", **PUBLIC), True),
        (rule("deny", hosts=["93.184.216.34"]), True),
        (rule("deny", hosts=["93.184.216.34:443"]), True),
        (rule("deny", **PUBLIC, methods=["POST"]), True),
        (rule("deny", **PUBLIC, url_paths=["/x"]), True),
        (rule("deny", **PUBLIC, when="agent == 'coder'"), True),
        (rule("deny", **PUBLIC, when="host == 'a.test'"), True),
        (rule("deny", **PUBLIC, unless={"hosts": ["b.test"]}), True),
        (rule("deny", **PUBLIC, unless={"hosts": ["a.test"]}), False),
        (rule("deny", **PUBLIC, when="agent == 'other'"), False),
        (rule("deny", **PUBLIC, mode="shadow"), False),
        (rule("deny", hosts=["93.184.216.34:80"]), False),
        (rule("deny", hosts=["93.184.217.0/24", "b.test"]), False),
        (rule("deny", when="port == 22"), False),
        (rule("ask", **PUBLIC), False),
        (rule("allow", **PUBLIC), False),
    ],
)
def test_a_deny_rule_is_about_what_a_name_leads_to(denying: dict[str, Any], denied: bool) -> None:
    facts = Facts(agent="coder")
    for judge in (policy(rule(), denying), Policy(document(rule()), document(denying))):
        found = judge.denies_address("a.test", "93.184.216.34", 443, facts)
        assert found.removeprefix("operator/") in ({"r0", "r1"} if denied else {""})
        assert judge.denies_address("a.test", "::ffff:93.184.216.34", 443, facts) == found
        assert judge.denies_address("a.test", "93.184.218.1", 443, facts) == ""
        assert judge.denies_address("a.test", "no address", 443, facts) == ""
