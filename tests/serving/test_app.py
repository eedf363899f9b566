"""What the service answers, and that nothing of a request is anywhere afterwards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from models.release import ARRAYS_FILE, MOST_RATINGS, RELEASE_FILE, Release
from serving import app as application
from serving.app import make_app
from serving.service import Service
from serving.words import Word
from tests.leak_search import Search, Secret
from tests.serving.releases import CONDITION, GUARANTEE, Client, champion, release, service

OWN = [{"item": "3", "rating": 5}, {"item": 7, "rating": 1.5}, {"item": "elsewhere", "rating": 3}]
AS_READ = {"3": 5.0, "7": 1.5, "elsewhere": 3.0}
PLANTED_ITEM, PLANTED_RATING = "unmistakable-film", 83.25417


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return service(champion(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def client(served: Service) -> Client:
    return Client(served)


def error_of(answer: httpx.Response) -> str:
    """The sentence, after looking whether the body is as every refusal's."""
    body = answer.json()
    assert set(body) == {"error"}
    assert body["error"]["status"] == answer.status_code
    return str(body["error"]["message"])


def test_recommendations_are_those_of_the_release(client: Client) -> None:
    answer = client.post("/recommend", json={"ratings": OWN, "n": 5})
    assert answer.status_code == 200
    body = answer.json()
    assert [(i["item"], i["title"], i["rating"]) for i in body["items"]] == release(1).recommend(AS_READ, 5)
    assert (body["ignored"], body["unknown"], body["note"]) == (1, [], None)
    assert body["model"] == {"name": "films.serving", "version": "1"}
    assert len(client.post("/recommend", json={"ratings": OWN}).json()["items"]) == 10
    assert client.post("/recommend", json={"ratings": OWN, "n": 0}).json()["items"] == []


def test_predictions_are_those_of_the_release_and_unknown_items_are_named(client: Client) -> None:
    body = client.post("/predict", json={"ratings": OWN, "items": ["9", "nowhere", 2]}).json()
    assert [item["item"] for item in body["items"]] == ["9", "2"]
    assert [item["rating"] for item in body["items"]] == release(1).predict(AS_READ, ["9", "2"]).tolist()
    assert body["unknown"] == ["nowhere"]


@pytest.mark.parametrize(
    ("ratings", "said"),
    [([], "No ratings were given"), ([{"item": "nowhere", "rating": 4}], "None of the rated items"), (OWN, None)],
)
def test_whoever_is_answered_like_a_stranger_is_told(client: Client, ratings: list[Any], said: str | None) -> None:
    body = client.post("/recommend", json={"ratings": ratings}).json()
    assert (said or "") in (body["note"] or "")
    assert (body["note"] is None) == (said is None)


def test_nobody_need_say_that_there_are_no_ratings(client: Client) -> None:
    assert client.post("/recommend", json={}).json() == client.post("/recommend", json={"ratings": []}).json()


def rated(rating: Any, item: Any = "3") -> dict[str, Any]:
    return {"ratings": [{"item": "1", "rating": 2}, {"item": item, "rating": rating}]}


@pytest.mark.parametrize(
    ("path", "request_", "said"),
    [
        ("/recommend", rated(5.5), "from 1 to 5"),
        ("/recommend", rated(0, "elsewhere"), "from 1 to 5"),
        ("/recommend", rated("4"), "a rating is a finite number; something else is at ratings[1].rating"),
        ("/recommend", rated(True), "a rating is a finite number"),
        ("/recommend", rated(None), "a rating is a finite number"),
        ("/recommend", rated(10**400), ""),
        ("/recommend", rated(4, 2.5), "a text or a whole number"),
        ("/recommend", rated(4, None), "a text or a whole number"),
        ("/recommend", rated(4, True), "a text or a whole number"),
        ("/recommend", rated(4, "1"), "at most once"),
        ("/recommend", rated(4, 1), "at most once"),
        ("/recommend", {"ratings": [{"item": "1"}]}, "rating is missing at ratings[0]"),
        ("/recommend", {"ratings": [{"rating": 1}]}, "item is missing at ratings[0]"),
        ("/recommend", {"ratings": [{"item": "1", "rating": 1, "when": 5}]}, "a field at ratings[0] that is none"),
        ("/recommend", {"ratings": {"1": 4}}, "ratings is a list"),
        ("/recommend", {"ratings": [["1", 4]]}, "ratings is a list"),
        ("/recommend", {"ratings": None}, "ratings is a list"),
        ("/recommend", {"ratings": [], "items": ["1"]}, "a field that is none"),
        ("/recommend", {"n": -1}, "from 0 to 1,000"),
        ("/recommend", {"n": 1001}, "from 0 to 1,000"),
        ("/recommend", {"n": 2.5}, "whole number"),
        ("/recommend", {"n": "3"}, "whole number"),
        ("/recommend", {"n": True}, "whole number"),
        ("/recommend", {"n": None}, "whole number"),
        ("/predict", {"ratings": []}, "items is missing"),
        ("/predict", {"items": "1"}, "items is a list"),
        ("/predict", {"items": [1.5]}, "a text or a whole number"),
        ("/predict", {"items": ["1"], "n": 3}, "a field that is none"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence_that_quotes_nothing(
    client: Client, path: str, request_: Any, said: str
) -> None:
    answer = client.post(path, json=request_)
    assert answer.status_code == 422
    assert said in error_of(answer)
    assert "5.5" not in answer.text
    assert "when" not in answer.text


def posted(client: Client, content: bytes, kind: str | None = "application/json") -> httpx.Response:
    return client.post("/recommend", content=content, headers={"Content-Type": kind} if kind else {})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(client: Client, number: str) -> None:
    answer = posted(client, f'{{"ratings": [{{"item": "1", "rating": {number}}}]}}'.encode())
    assert answer.status_code == 422
    assert "finite" in error_of(answer)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"ratings", b'"x"', b"[]", b"null", b"\xff\xfe{", b'{"n": ' + b"9" * 5000 + b"}", b"[" * 100_000,
     b'{"ratings": "\xc3"}'],
)  # fmt: skip
def test_what_is_no_json_object_is_a_bad_request(client: Client, content: bytes) -> None:
    answer = posted(client, content)
    assert answer.status_code == 400
    assert "JSON object" in error_of(answer)


def test_half_a_surrogate_pair_names_an_item_that_is_unknown(client: Client) -> None:
    answer = posted(client, b'{"ratings": [{"item": "\\ud800", "rating": 3}]}')
    assert answer.json()["ignored"] == 1
    answer = client.post("/predict", content=b'{"items": ["\\ud800"]}', headers={"Content-Type": "application/json"})
    assert answer.json()["unknown"] == ["\ud800"]


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_another_content_type_is_refused(client: Client, kind: str | None) -> None:
    assert posted(client, b"{}", kind).status_code == 415
    assert posted(client, b"{}", "application/json; charset=utf-8").status_code == 200


def test_too_many_ratings_are_refused(client: Client) -> None:
    many = [{"item": item, "rating": 3} for item in range(MOST_RATINGS + 1)]
    assert client.post("/recommend", json={"ratings": many[:-1]}).json()["ignored"] == MOST_RATINGS - 40
    answer = client.post("/recommend", json={"ratings": many})
    assert answer.status_code == 422
    assert "at most 10,000" in error_of(answer)


def test_a_large_request_does_not_hold_up_the_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    small_is_answered, real = Event(), Release.answer

    def answer(self: Release, ratings: Any, **what: Any) -> Any:
        if len(ratings) > application.FEW:
            assert small_is_answered.wait(5)
        else:
            small_is_answered.set()
        return real(self, ratings, **what)

    monkeypatch.setattr(Release, "answer", answer)
    large = [{"item": item, "rating": 3} for item in range(application.FEW + 1)]
    answers = client.post_together("/recommend", {"ratings": large}, {"ratings": OWN})
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["ignored"] == len(large) - 40
    off_the_scale = [{"item": item, "rating": 9} for item in range(application.FEW + 1)]
    assert client.post("/recommend", json={"ratings": off_the_scale}).status_code == 422


def test_many_items_are_predicted_like_a_few(tmp_path: Path) -> None:
    made = release(3, n_items=2 * application.FEW + 3)
    client = Client(service(champion(tmp_path, "3", made)))
    for items in (list(made.items), ["nowhere", *made.items[: application.FEW]], list(made.items[:2]), []):
        body = client.post("/predict", json={"ratings": OWN, "items": items}).json()
        known = [item for item in items if item != "nowhere"]
        assert [item["item"] for item in body["items"]] == known
        assert [item["rating"] for item in body["items"]] == made.predict(AS_READ, known).tolist()
        assert len(body["unknown"]) == len(items) - len(known)


@pytest.mark.parametrize("announced", [True, False])
def test_a_million_ratings_are_too_large_announced_or_not(client: Client, announced: bool) -> None:
    body = b'{"ratings": [%b]}' % b", ".join([b'{"item": "1", "rating": 3}'] * 1_000_000)
    content: Any = body if announced else (body[at : at + 65536] for at in range(0, len(body), 65536))
    answer = posted(client, content)
    assert answer.status_code == 413
    assert "10,000 ratings" in error_of(answer)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/release", 404),
        ("GET", "/release/../release.json", 404),
        ("GET", "/recommend", 405),
        ("POST", "/healthz", 405),
        ("DELETE", "/release/release.json", 405),
        ("GET", "/recommend?ratings=50:5", 400),
        ("GET", "/metrics?x", 400),
        ("POST", "/recommend?n=5", 400),
        ("POST", "/recommend/", 404),
    ],
)
def test_addresses_are_found_or_refused_and_hold_no_questions(
    client: Client, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert error_of(answer)
    assert ("Allow" in answer.headers) == (status == 405)


def test_the_files_are_those_of_the_version_and_are_not_sent_twice(client: Client, tmp_path: Path) -> None:
    for name in (ARRAYS_FILE, RELEASE_FILE):
        answer = client.get(f"/release/{name}")
        (tmp_path / name).write_bytes(answer.content)
        assert answer.headers["Jali-Version"] == "1"
        assert answer.headers["ETag"].startswith('"1-')
        known = {"If-None-Match": f'"other", {answer.headers["ETag"]}'}
        again = client.get(f"/release/{name}", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert client.request("HEAD", f"/release/{name}").status_code == 200
    assert Release.load(tmp_path).recommend(AS_READ, 3) == release(1).recommend(AS_READ, 3)


def test_a_file_is_handed_out_in_pieces(tmp_path: Path) -> None:
    serving = service(champion(tmp_path, made=release(n_items=20_000)))
    assert serving.served is not None
    content, said = serving.served.files[RELEASE_FILE].content, []

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "GET", "path": f"/release/{RELEASE_FILE}", "query_string": b"", "headers": []}
    asyncio.run(make_app(serving)(scope, None, send))  # type: ignore[arg-type]
    pieces = [message["body"] for message in said[1:]]
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) < len(content) / 3
    assert (b"content-length", b"%d" % len(content)) in said[0]["headers"]


def test_the_guarantee_comes_with_the_condition_of_its_promotion(client: Client) -> None:
    told = client.get("/guarantee").json()
    assert told["guarantee"] == GUARANTEE
    assert told["sentence"] == GUARANTEE["sentence"]
    assert told["conditions_of_promotion"] == [CONDITION]


def test_a_new_champion_answers_at_once_and_its_files_have_other_tags(tmp_path: Path) -> None:
    serving = service(champion(tmp_path, "1"))
    client = Client(serving)
    before = client.get("/release/release.json").headers["ETag"]
    serving.hear(Word(champion=champion(tmp_path, "2"), in_touch=True))
    assert client.post("/recommend", json={}).json()["model"]["version"] == "2"
    answer = client.get("/release/release.json", headers={"If-None-Match": before})
    assert (answer.status_code, answer.headers["Jali-Version"]) == (200, "2")


def test_without_a_release_the_process_lives_and_is_not_ready() -> None:
    client = Client(service())
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 503
    for answer in (client.post("/recommend", json={}), client.get("/guarantee"), client.get("/release/release.json")):
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "1"
        assert error_of(answer)


def test_ready_says_which_version_since_when_and_what_is_wrong(tmp_path: Path) -> None:
    serving = service(champion(tmp_path))
    client = Client(serving)
    told = client.get("/readyz").json()
    assert (told["ready"], told["registry_in_touch"], told["problem"]) == (True, True, None)
    assert told["model"]["version"] == "1"
    serving.hear(Word(in_touch=False, problem="MLflow does not answer."))
    told = client.get("/readyz").json()
    assert (told["ready"], told["registry_in_touch"], told["problem"]) == (True, False, "MLflow does not answer.")


SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


def test_every_answer_has_the_headers_that_keep_it_where_it_is(client: Client) -> None:
    for answer in (
        client.post("/recommend", json={}),
        client.get("/nowhere"),
        posted(client, b"{"),
        posted(client, b"x" * (2 << 20)),
    ):
        assert {name: answer.headers[name] for name in SAFE} == SAFE
        assert "access-control-allow-origin" not in answer.headers


def test_other_sites_may_ask_only_where_they_are_named(served: Service) -> None:
    client = Client(served, ["https://films.example"])
    for origin, allowed in (("https://films.example", "https://films.example"), ("https://evil.example", None)):
        answer = client.post("/recommend", json={}, headers={"Origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed


def test_the_documentation_needs_nothing_from_elsewhere(client: Client) -> None:
    page = client.get("/docs")
    assert "curl" in page.text
    assert "src=" not in page.text
    assert "script" not in page.text
    assert "style-src 'sha256-" in page.headers["content-security-policy"]
    described = client.get("/openapi.json").json()
    assert {"/recommend", "/predict", "/guarantee", "/release/release.json"} <= set(described["paths"])
    assert "HTTPValidationError" not in json.dumps(described)


def test_metrics_count_answers_by_path_and_know_no_path_that_is_not_ours(tmp_path: Path) -> None:
    client = Client(service(champion(tmp_path, "4")))
    client.post("/recommend", json={"ratings": OWN})
    client.post("/recommend", json={"n": -1})
    client.get(f"/rate/{PLANTED_ITEM}/5")
    client.request(PLANTED_ITEM, "/recommend")
    told = client.get("/metrics").text
    assert 'jali_requests_total{path="/recommend",status="200"} 1.0' in told
    assert 'jali_requests_total{path="/recommend",status="422"} 1.0' in told
    assert 'jali_requests_total{path="other",status="404"} 1.0' in told
    assert 'jali_champion_version{name="films.serving"} 4.0' in told
    assert "jali_request_seconds_bucket" in told
    assert "created" not in told
    assert PLANTED_ITEM not in told


def test_a_mistake_of_ours_is_a_sentence_without_the_request(
    served: Service, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told: list[str] = []
    monkeypatch.setattr(served, "tell", told.append)

    def fails(*arguments: object, **named: object) -> None:
        raise KeyError(f"{arguments} {named} {PLANTED_ITEM}")

    monkeypatch.setattr(application, "_answer", fails)
    client = Client(served)
    answer = client.post("/recommend", json={"ratings": [{"item": PLANTED_ITEM, "rating": 5}]})
    assert answer.status_code == 500
    assert "kept" in error_of(answer)
    assert told == ["jali: a request failed (KeyError); this is a mistake of Jali's."]
    assert PLANTED_ITEM not in "".join(capfd.readouterr())


def test_no_answer_and_no_line_holds_what_was_asked(
    served: Service, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with a request, its items and ratings are in no refusal, no metric and no line."""
    told: list[str] = []
    monkeypatch.setattr(served, "tell", told.append)
    client = Client(served)
    secret = {"item": PLANTED_ITEM, "rating": PLANTED_RATING}
    said = [client.post("/recommend", json={"ratings": ratings}).text for ratings in (
        [secret], [{**secret, "rating": str(PLANTED_RATING)}], [{**secret, PLANTED_ITEM: 1}], [secret, secret],
        {PLANTED_ITEM: PLANTED_RATING}, [{"item": {PLANTED_ITEM: 1}, "rating": 3}], PLANTED_ITEM,
    )]  # fmt: skip
    said += [client.post("/recommend", json={"ratings": [], PLANTED_ITEM: PLANTED_RATING}).text]
    said += [posted(client, f'{{"{PLANTED_ITEM}": {PLANTED_RATING}, '.encode()).text]
    said += [client.get(f"/recommend?item={PLANTED_ITEM}&rating={PLANTED_RATING}").text]
    said += [client.get(f"/{PLANTED_ITEM}/{PLANTED_RATING}").text, client.get("/metrics").text]
    search = Search((Secret.text("item", PLANTED_ITEM), Secret.text("rating", str(PLANTED_RATING))))
    search.look("answers", "\n".join(said).encode())
    search.look("the terminal", "\n".join([*told, *capfd.readouterr()]).encode())
    assert [str(finding) for finding in search.findings] == []
    search.look("the control", client.post("/predict", json={"items": [PLANTED_ITEM]}).content)
    assert search.findings
