//! The checks by level, in one place: a table of them is made of it, and a test for each.

/// Calls a macro with the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_checks {
    ($($then:tt)*) => {
        $($then)*! {
            Verbs {
                k1_every_verb_completes_once
                k1_issued_under_no_block
                k1_issued_from_a_routine
                k1_many_at_once
                k4_a_routine_may_issue
                k6_a_routine_may_let_go_of_the_result
                k15_what_pends_is_listed
                k16_a_client_acts_on_its_own
                k16_no_client_reaches_another
                limits_are_refused_by_name
                arguments_are_refused_by_name
                extensions_are_listed_with_what_they_need
            }
            Objects {
                k10_busy_changes_nothing
                k10_every_edge
                k11_requests_delay_a_destroy
                k12_dropped_handles_leave_nothing
                k12_when_idle_waits_for_the_children
                k13_living_objects_have_different_numbers
                k13_a_key_is_not_used_again_at_once
                objects_can_be_made_again_and_again
                a_refused_transition_changes_nothing
                queues_in_reset_take_nothing
            }
            Endings {
                k8_cancel_leaves_nothing
                k8_a_late_cancel_has_no_effect
                k9_a_future_that_was_not_polled_did_nothing
                k9_a_future_dropped_while_it_pends
                k9_a_future_dropped_after_its_completion
                k15_removal_completes_everything
                k17_each_event_is_seen_once
                k17_an_idle_client_hears_of_the_removal
                k17_whoever_asks_later_hears_of_the_removal
            }
            Connections {
                limits_of_connections_are_refused_by_name
                b8_an_end_follows_its_result
                a_failed_connect_is_tried_again_by_its_routine
                requests_beyond_the_backlog_are_rejected
            }
        }
    };
}

/// Makes a test of each check of the conformance suite, with its name: for the tests of a provider. The argument is what
/// [`conformance::run`](crate::testing::conformance::run) takes, a function that makes a fresh
/// [`Subject`](crate::testing::Subject).
///
/// ```
/// #[cfg(test)]
/// mod conformance {
///     use std::sync::Arc;
///     use verbs_core::testing::{Null, Subject};
///
///     verbs_core::conformance_tests!(|| Subject::new(Arc::new(Null::default())));
/// }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr $(,)?) => {
        fn conformance_subject() -> $crate::testing::Subject {
            ($make)()
        }

        $crate::__conformance_checks! { $crate::__conformance_tests }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ($($level:ident { $($name:ident)* })*) => {
        $($(
            #[test]
            fn $name() {
                $crate::testing::conformance::run_one(stringify!($name), conformance_subject);
            }
        )*)*
    };
}
