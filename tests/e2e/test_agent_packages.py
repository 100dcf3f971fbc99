"""Whole agents against `tandem up` with a scripted model: canitoolcall's live probe, and agent packages where they are installed."""

import asyncio
import subprocess
import sys

import pytest

from agent_scripts import TEMPLATE, call

pytestmark = pytest.mark.quick

NOTE = "Café ☕ in 東京 — naïve résumé 🚀"
REPLIES = [
    {"when": '"temp_c": 18', "reply": "It is 18 degrees and clear in Paris."},
    {"when": "weather-is-18", "reply": "It is 18 degrees."},
    {"when": "file-was-made", "reply": call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")},
    {"when": "swe-task", "reply": call("bash", command="echo done > made.txt && echo file-was-made")},
    {"when": "agent-task", "reply": call("get_weather", city="Paris")},
    {"when": "Paris and in Tokyo", "reply": call("get_weather", city="Paris") + "\n" + call("get_weather", city="Tokyo")},
    {"when": "17 + 25", "reply": "42"},
    {"when": "Design review", "reply": call("create_event", title="Design review", start="2026-10-01T15:00:00Z",
                                            attendees=[{"name": "Ana", "email": "ana@example.com"}, {"name": "Bo", "email": "bo@example.com"}],
                                            location={"city": "Berlin", "room": "4.12"})},
    {"when": "Grüße aus Zürich", "reply": call("save_note", title="Grüße aus Zürich", body=NOTE)},
    {"when": "time is it", "reply": call("get_server_time")},
    {"when": "Lisbon", "reply": call("get_weather", city="Lisbon")},
    {"when": "9.11 or 9.9", "reply": "<think>\n9.9 is 9.90.\n</think>\n\n" + call("record_answer", answer="9.9")},
    {"when": "weather in Paris", "reply": call("get_weather", city="Paris")},
    {"reply": "Hello."},
]


@pytest.fixture(scope="module")
def up(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), REPLIES, chat_template=TEMPLATE)
    return module_launch("up", "up", script, "--port", "0").wait_ready()


def test_the_live_probe(up):
    pytest.importorskip("canitoolcall")
    done = subprocess.run([sys.executable, "-m", "canitoolcall", "probe", "--base-url", up.url + "/v1", "--model", "default"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents(up, api):
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    if not hasattr(agents, "Runner"):
        pytest.skip("openai-agents is not installed")
    import openai
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=up.url + "/v1", api_key="unused", max_retries=0)
    kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather."""
        return "weather-is-18" if city == "Paris" else "?"

    agent = agents.Agent(name="a", model=kind(model="default", openai_client=client), tools=[get_weather])

    async def both():
        whole = await agents.Runner.run(agent, "agent-task")
        running = agents.Runner.run_streamed(agent, "agent-task")
        async for _ in running.stream_events():
            pass
        return whole.final_output, running.final_output

    assert asyncio.run(both()) == ("It is 18 degrees.", "It is 18 degrees.")


def test_pydantic_ai(up):
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    agent = pydantic_ai.Agent(OpenAIChatModel("default", provider=OpenAIProvider(base_url=up.url + "/v1", api_key="unused")))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        return "weather-is-18"

    assert asyncio.run(agent.run("agent-task")).output == "It is 18 degrees."


def test_mini_swe_agent(up, tmp_path, monkeypatch):
    pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed")
    monkeypatch.setenv("MSWEA_COST_TRACKING", "ignore_errors")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel
    model = LitellmModel(model_name="openai/default", cost_tracking="ignore_errors", model_kwargs={
        "api_base": up.url + "/v1", "api_key": "unused", "temperature": 0.0})
    agent = DefaultAgent(model, LocalEnvironment(cwd=str(tmp_path)), system_template="You use bash.", instance_template="{{task}}", step_limit=5)
    agent.run("swe-task")
    assert (tmp_path / "made.txt").read_text() == "done\n"
