"""What a router for other engines' pairs must do, and the tests that hold ours to it, against the mocks of every dialect.

The e2e files run for every connector of `mocks.KINDS`; in C++, router/conformance gives every leg to a mock of its engine. A name here that no test has fails.
"""

import pathlib
import re

import pytest

pytestmark = pytest.mark.quick
TESTS = pathlib.Path(__file__).parent
SOURCES = TESTS.parent.parent / "src"

POINTS = {
    "1 connectors are data": """router/connectors/connector_test: SglangMeetsInARoom SglangBatchesHaveArraysOfEqualLength SglangRanks VllmNixlCopiesPrefillsParams
        VllmNixlPushGoesTogetherOnceTheIdentityIsKnown VllmMooncakeMeetsOnATransferId MoriioReadingTakesWhatPrefillNamedAndHowManyRanksItHas
        MoriioWritingTellsEachSideWhereTheOtherIs TrtllmContextFirst TrtllmGenerationFirst SharedStorageNeedsNoParams PlainTouchesNothing
        router/conformance/handoff_test: BothLegsMeet ALoneLegIsNoHandoff""",
    "1 wire shapes, field by field": """test_router_shapes: test_the_fields_of_each_kind_of_handoff test_a_stream_asks_prefill_for_no_stream
        test_a_batch_has_a_room_for_each_request test_every_request_has_ids_of_its_own test_clients_cannot_smuggle_handoffs
        test_shared_storage_is_one_token_at_prefill_and_then_the_clients_own_request
        test_router_kv_events: test_of_data_parallel_ranks_the_one_that_holds_the_prompt_is_asked
        router/connectors/connector_test: VllmOtherApisAreBoundInTheirOwnFields SglangGenerateIsBoundInItsSamplingParams SglangPortsMayBeNull VllmHeaders
        TrtllmContextThatFinishedIsTheAnswer""",
    "2 byte splices": """test_router_shapes: test_a_clients_bytes_stay_as_they_are test_what_cannot_be_edited_safely_is_refused_early
        test_router_bodies: test_clients_bodies_reach_the_engines_byte_for_byte_outside_the_edits
        router/connectors/facts_test: RefusesWhatNobodyShouldRead router/router_relay_test: BothLegsGetTheClientsOwnBytesAndOneObject""",
    "3 cancelling by phase": """test_router_failures: test_clients_that_leave_at_every_moment_leave_nothing test_a_client_that_leaves_aborts_by_the_routers_own_id
        router/legs/legs_orders_test: KvInFlightIsNotCutWhenTheClientLeaves BeforeAndAfterTheTransferBothAreCut KvThatNobodyTookIsReleased
        TheDeadlineDoesNotCutKvInFlightEither ReleasingIsAChoice router/legs/legs_random_test: InvariantsHoldForAnyOrderOfEvents""",
    "4 the first byte waits for no answer of prefill's": """test_router_failures: test_a_prefill_whose_answer_stalls_delays_nobody
        router/router_relay_test: TokensNeverWaitForPrefillsAnswerAndUsageWaitsOnlySoLong""",
    "5 a dead leg cuts the other within 50 ms, refusals word for word, the guilty is charged": """
        test_router_failures: test_a_dead_prefill_frees_decode_at_once test_a_dead_decode_frees_prefill_at_once test_a_refusal_is_handed_on_word_for_word
        test_an_aborted_transfer_is_an_error_not_a_short_answer test_a_decode_that_dies_mid_stream_ends_in_an_error_frame
        router/legs/legs_orders_test: PrefillsErrorCancelsDecodeWithin50msAndChargesOnlyPrefill ADecodeThatFailsBecausePrefillDiedIsNotCharged""",
    "6 events at any split": """test_router_failures: test_streams_survive_any_splitting
        net/sse_test: EverySplitGivesTheSameFramesAndTheSameBytes DoneIsAWholeDataLine AnEndlessFrameIsAnError LongStreamsDoNotGrowTheBuffer
        router/conformance/stream_test: TellTheSameTruthAtEverySplit AreRewrittenToo""",
    "7 usage of every API": """test_router_failures: test_usage_is_the_truth_of_both_legs test_usage_of_other_apis_is_the_truth_too test_who_asked_for_no_usage_gets_none
        test_a_wrong_usage_breaks_nothing router/usage/reply_rewriter_test: ChatTellsPrefillsPromptAndCachedTokens WithoutPrefillsNumberNoCachedNumberIsTold
        ResponsesEventsHoldTheReply AnthropicCountsInTwoEvents GenerateCountsInEveryEvent WhatIsBetweenWorkersIsTakenOut""",
    "8 load that ends with the body, never negative, no herd": """router/legs/load_test: RandomUseEndsAtZero RemovesExactlyWhatItAdded
        router/policy/policy_test: PowerOfTwoNeverTakesTheMostLoadedAndComparesFreshLoads router/policy/expected_output_test: OursCountsOnceOthersAsLastReported
        test_router_chaos: test_ten_seconds_of_every_fault_for_every_kind_of_pair""",
    "9 the index": """router/prefix/block_index_test: NeverGrowsPastItsBytesAndKeepsWhatIsUsed TiersOfOneCacheCountTogetherByTheirWeights AgreesWithAPlainModelOnRandomHistories
        router/prefix/prefix_holders_test: AllOfItStaysWithinItsBytes TiersCountForLess AnExpectationHoldsUntilItsPromptIsComputedAndAMomentLonger
        AWorkerWithoutEventsIsBelievedWhatItAnsweredUntilNobodyAsksForItAnyMore EventsOfTwoEnginesMeetWhateverTheyCallTheirBlocks
        test_router_kv_events: test_the_router_follows_a_publisher_of_vllms test_a_restarted_publisher_counts_from_zero_and_what_it_told_is_void
        test_ranks_and_topics_are_told_apart test_a_prompt_that_came_past_the_router_is_found""",
    "10 bounded buffers": """test_router_failures: test_a_client_that_does_not_read_costs_a_bounded_buffer test_a_slow_reader_of_requests_holds_up_only_itself""",
    "11 the fleet": """test_router_fleet: test_workers_come_and_go test_the_fleet_follows_a_file test_workers_are_tables_of_the_configuration_file
        test_after_a_failed_pair_leg_one_rank_is_asked_who_it_is_and_the_others_only_of_another_process
        test_router_failures: test_a_restarted_engine_is_met_anew test_router_busy: test_new_requests_avoid_a_silent_engine""",
    "12 repetitions": """test_router_failures: test_another_worker_is_asked_when_one_fails_before_its_first_byte test_each_attempt_has_new_ids
        router/legs/retry_budget_test: AShareOfTheRequestsAndAFloor router/legs/legs_test: NothingIsRepeatedAfterTheFirstByte RepetitionsAreBounded""",
    "13 headers": """test_router_shapes: test_both_legs_carry_the_clients_headers test_router_failures: test_a_response_names_the_chosen_workers""",
    # 14, published overhead: bench/router, docs/performance.md.
    "the policy": """test_router_policy: test_agents_keep_their_caches_and_the_load_is_even test_an_overload_is_queued_fairly_and_refused_in_time
        test_the_simulator_says_what_the_router_over_mocks_measures""",
    "overload and deadlines": """router/admission/admission_test: UrgentGoesBeforeNormalBeforeBatch NoClassStarvesUnderAFloodOfUrgentOnes AFloodingTenantDoesNoHarmToAnother
        WhatCannotMeetItsDeadlineIsRefusedAtOnceWithTheTimeToComeBack TheQueueIsBoundedInBytes router/router_failure_test: ADeadlineEndsARequestThatNobodyAnswers
        router/admission_gate_test: ReadsPrioritiesAndDeadlinesOfClients""",
    "https on both sides": "test_router_fleet: test_https_on_both_sides",
    "the mocks": """test_mock: test_a_published_router_drives_the_sglang_mocks_unchanged test_a_published_router_drives_the_vllm_mocks_unchanged
        test_a_leg_without_its_partner_hangs_until_somebody_cuts_it test_thousands_live_in_one_process test_faults_are_set_while_it_runs
        mock/mock_test: EveryFaultIsSeenByTheClient FaultsOfSilenceAndOfGivingUpAreSeenToo ALeaseRunsOutAndIsCounted AnAbortedTransferFailsBothLegs
        mock/mock_ranks_test: ASlowReaderTakesItsTime""",
    # Public bug reports, through the router to other engines' mocks; test_bugs_*.py have Tandem's own workers.
    "row 50": "test_router_failures: test_usage_is_the_truth_of_both_legs",
    "rows 51 and 53": """test_router_failures: test_a_decode_that_dies_mid_stream_ends_in_an_error_frame test_an_answer_that_its_engine_gave_up_is_an_error
        router/router_relay_test: AFinishReasonThatNobodyKnowsIsHandedOnAsItIs""",
    "rows 65, 66, 93": "test_router_failures: test_clients_that_leave_at_every_moment_leave_nothing test_a_gone_client_frees_its_engines_within_a_step",
    "row 68": "test_router_failures: test_a_large_body_is_asked_for_or_refused_at_once",
    "row 69": "test_router_failures: test_a_kept_connection_serves_again test_bugs_f: test_a_connection_that_will_close_says_so_first",
    "row 71": "test_router_failures: test_no_route_serves_without_a_key router/router_routes_test: EveryRouteOfTheTableButTheDocumentedOnesNeedsTheKey",
    "row 74": "test_router_failures: test_sigterm_lets_streams_end router/router_routes_test: WhatOutlastsTheDrainEndsWithAnErrorFrame",
    "row 75": "test_router_failures: test_a_dead_pool_shows_in_the_health_and_answers_503",
    "row 77": "test_router_failures: test_health_stays_prompt_in_a_burst router/router_workers_test: HealthStaysFastWhileManyStreamsRun",
    "row 89": "test_router_failures: test_a_refusal_is_handed_on_word_for_word",
    "row 91": "test_router_failures: test_an_abort_storm_is_over_when_it_ends test_a_dead_prefill_frees_decode_at_once",
    "row 92": "test_router_failures: test_an_aborted_transfer_is_an_error_not_a_short_answer",
    "row 95": "test_router_failures: test_a_restarted_engine_is_met_anew",
}


def names(place):
    """The tests of a file."""
    source = SOURCES / f"{place}.cc" if "/" in place else TESTS / f"{place}.py"
    return set(re.findall(r"^def (test_\w+)|^TEST(?:_[FP])?\(\w+,\s*(\w+)\)", source.read_text(), re.MULTILINE))


def test_every_point_has_the_tests_that_are_named():
    for point, listed in POINTS.items():
        place, known, found = None, set(), 0
        for word in listed.split():
            if word.endswith(":"):
                place = word[:-1]
                known = {name for pair in names(place) for name in pair if name}
            else:
                assert word in known, f"{point}: {place} has no test {word}"
                found += 1
        assert found, point
