"""Thirty conversations with a fact each, memory for a few of them, and processes that die and freeze: nobody reads another's fact."""

import concurrent.futures

import pytest

from chaos import Chaos, Conversation, storm
from servers import chat

CONVERSATIONS = 30
HANDED_OVER = ("--local-prefill-tokens", "0")  # decode never helps itself
SAID = "you said {echo:0} and nothing else at all"


def fact(number):
    return f"fact-{number:03d}x"


def planted(number):
    """Turns that grow into a dialogue about one's own fact, then begin anew with other words before it."""
    said, messages, rounds = SAID.replace("{echo:0}", fact(number)), [], 0

    def next_turn(rng):
        nonlocal messages, rounds
        if len(messages) > 4 or rng.randrange(6) == 0:
            messages = []
        if not messages:
            rounds += 1
            padding = " ".join(f"{number}-{rounds}-{i}" for i in range(rng.randrange(2, 24)))
            messages = [{"role": "user", "content": f"{padding} remember {fact(number)} please"}]
        else:
            messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "and again?"}]
        return messages, said

    return next_turn


def run(cluster, seconds, seed):
    chaos = Chaos(cluster, seed)
    conversations = [Conversation(chaos, number, planted(number), max_tokens=48) for number in range(CONVERSATIONS)]
    total = storm(cluster, conversations, chaos, seconds)
    assert total["answered"] > 2 * seconds and total["left"] > seconds, total
    # Of the processes' last lives, which began up to a few seconds ago.
    assert sum(process.metrics()["tandem_handoffs_received_total"] for process in cluster.workers) > 10
    evicted = sum(process.metrics()["tandem_kv_evictions_total"] for process in cluster.workers)
    assert evicted > 0, "no page was ever used again"
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        def ask(number):
            return chat(cluster.url, [{"role": "user", "content": f"{number} at last remember {fact(number)}"}], max_tokens=48, temperature=0)

        for number, reply in enumerate(pool.map(ask, range(CONVERSATIONS))):
            assert reply.status == 200, reply.body
            assert reply.json()["choices"][0]["message"]["content"] == SAID.replace("{echo:0}", fact(number))
    cluster.wait_settled()


@pytest.fixture
def tiny(cluster, write_script, tmp_path):
    """96 pages of 16 tokens on each worker; a conversation takes 4 to 20."""
    script = write_script(tmp_path, [{"reply": SAID}], step_ms=1, row_ms=0.3)
    return cluster(script, prefill=2, decode=2, worker_options=("--kv-memory", "192K", "--prefill-chunk", "32"), router_options=HANDED_OVER)


@pytest.mark.quick
def test_half_a_minute_of_deaths_and_freezes_mixes_no_conversations(tiny):
    run(tiny, 30, seed=5)


def faulty(cluster, write_script, tmp_path, fault, level):
    script = write_script(tmp_path, [{"reply": SAID}], step_ms=1, row_ms=0.3)
    options = ("--kv-memory", "192K", "--prefill-chunk", "32", "--kv-integrity", level, "--kv-fault", fault)
    return cluster(script, prefill=2, decode=2, worker_options=options, router_options=HANDED_OVER)


FAULTS = ["swap-pages:3", "free-early", "lost-layer-in-copy", "flip-bit-in-copy:3"]


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_without_checks_the_storm_finds_a_planted_fault(cluster, write_script, tmp_path, fault):
    """This test can fail: what the next ones call clean is seen to be dirty."""
    with pytest.raises(AssertionError, match="read .* instead of"):
        run(faulty(cluster, write_script, tmp_path, fault, "off"), 60, seed=5)


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_with_checks_the_same_storm_and_fault_mix_nothing(cluster, write_script, tmp_path, fault):
    """The process that is started again plants its fault again, so there are many; quarantined pages may end a worker."""
    stack = faulty(cluster, write_script, tmp_path, fault, "full")
    chaos = Chaos(stack, seed=5)
    total = storm(stack, [Conversation(chaos, number, planted(number), max_tokens=48) for number in range(CONVERSATIONS)], chaos, 12)
    assert total["answered"] > 12, total
    found = sum(process.log_path.read_text(errors="replace").count('{"incident":') for process in stack.workers)
    assert found > 0, "no fault came"


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_five_minutes_of_deaths_and_freezes_mix_no_conversations(tiny, seed):
    run(tiny, 300, seed)


@pytest.mark.soak
def test_deaths_and_freezes_change_no_word_of_a_real_models_answers(cluster, model):
    """What the model says alone and undisturbed is what it says, as far as it gets, in the storm."""
    real = cluster(model, prefill=2, decode=2, worker_options=("--kv-memory", "24M", "--threads", "1"), router_options=HANDED_OVER)
    prompts = [[{"role": "user", "content": f"My name is {name} and I keep {count} {pets}. Tell me what you know about me."}]
               for count, (name, pets) in enumerate([("Ada", "cats"), ("Bo", "hens"), ("Cy", "bees"), ("Dee", "dogs"), ("Eli", "goats"),
                                                     ("Fay", "fish"), ("Gus", "mice"), ("Hal", "owls")], 2)]
    answers = [chat(real.url, messages, max_tokens=24, temperature=0).json()["choices"][0]["message"]["content"] for messages in prompts]
    assert len(set(answers)) == len(answers)
    chaos = Chaos(real, seed=9)
    conversations = [Conversation(chaos, number, lambda rng, n=number: (prompts[n], answers[n]), max_tokens=24) for number in range(len(prompts))]
    total = storm(real, conversations, chaos, 60)
    assert total["answered"] > 20, total
