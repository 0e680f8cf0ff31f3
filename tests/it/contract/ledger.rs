//! The contract of the ledger, as a list of behaviours.
//!
//! A back end is a [`Room`] and one line at the end. Every behaviour gets a
//! room of its own: one database that can be opened more than once.

mod active;
mod activity;
mod changes;
mod conditions;
mod doubts;
mod erasing;
mod feed;
mod fences;
mod finding;
mod history;
mod holds;
mod minutes;
mod pruning;
mod rankings;
mod records;
pub mod samples;
mod tallies;
mod tenants;
mod usage;
mod users;

use std::future::Future;
use std::sync::Arc;

use apportion::ledger::{Durability, Ledger, PostgresLedger, SqliteLedger};

use crate::harness::postgres::{Database, Postgres};

/// Where one behaviour is tried: one database.
pub trait Room: Sized {
    /// `None`: there is no such back end here, and that was told.
    fn new() -> Option<Self>;
    /// Without a schema yet.
    fn bare() -> Option<Self> {
        Self::new()
    }
    /// Opens the database, as a process would; the first time it is empty.
    fn open(&self) -> impl Future<Output = Arc<dyn Ledger>>;
}

macro_rules! stamp {
    ($backend:ident, $room:ty; $($file:ident::{$($behaviour:ident),* $(,)?})*) => {
        mod $backend {
            $(mod $file {
                $(#[tokio::test]
                async fn $behaviour() {
                    if let Some(room) = <$room as super::super::Room>::new() {
                        super::super::$file::$behaviour(room).await;
                    }
                })*
            })*
        }
    };
}

/// Every behaviour, for one back end.
macro_rules! contract {
    ($backend:ident: $room:ty) => {
        stamp! {
            $backend, $room;
            minutes::{
                minutes_are_the_sums_of_what_was_admitted_then,
                a_correction_counts_in_the_minute_of_the_admission,
            }
            rankings::{
                the_largest_come_first_and_equal_ones_by_name,
                every_group_figure_and_span_is_the_sum_of_what_was_recorded,
                refusals_count_for_users_and_the_present_plan_is_told,
                sums_end_where_whole_numbers_of_json_do,
                users_who_share_a_device_or_an_address_are_found_with_their_use,
                a_ranking_is_kept_in_parts_until_it_is_old_or_there_are_many,
            }
            feed::{
                events_come_in_the_order_of_commits_whatever_the_pages,
                an_event_keeps_its_figures_when_its_hold_is_corrected,
                a_number_that_was_given_to_another_event_is_none,
                events_belong_to_whoever_their_holds_belong_to,
                a_reader_misses_nothing_while_many_commit,
                events_go_before_their_holds_and_numbers_go_on,
                of_processes_that_commit_for_a_tenant_each_has_its_numbers,
            }
            activity::{
                what_users_used_of_late_stands_beside_what_they_used_before,
                what_a_user_used_of_late_goes_with_time_and_with_the_user,
            }
            active::{
                the_peak_of_active_users_is_the_busiest_slots,
                a_user_whom_several_nodes_see_counts_once,
                who_was_active_long_ago_is_forgotten,
            }
            holds::{
                a_hold_reads_back_as_it_was_written,
                what_was_committed_survives_reopening,
                a_hold_that_admits_its_user_puts_them_on_record,
                the_last_change_of_a_hold_and_an_account_stays,
                a_change_of_accounts_alone_is_kept,
                batches_of_every_size_are_written_whole,
                an_empty_batch_changes_nothing,
                a_hold_belongs_to_its_tenant,
                a_tenant_has_taken_once_a_hold_is_on_record,
                a_caller_that_goes_away_leaves_nothing_half_done,
                a_closed_ledger_refuses_instead_of_hanging,
                another_process_sees_what_was_committed,
            }
            finding::{
                an_unknown_account_is_empty,
                a_users_holds_come_in_the_order_of_their_making,
                a_users_account_comes_with_its_unfinished_holds,
                an_orgs_account_comes_with_its_unfinished_holds,
                a_tenants_account_comes_with_its_unfinished_holds,
                a_pools_account_comes_with_its_unfinished_holds,
                request_ids_come_with_the_users_account_while_they_are_kept,
                the_newest_hold_of_a_request_id_is_found,
                holds_in_doubt_come_oldest_first,
            }
            doubts::{
                doubts_come_in_pages_oldest_first,
                unfinished_holds_are_counted_by_whether_they_are_in_doubt,
                pages_of_doubts_stay_right_while_holds_come_and_end,
                doubts_are_filtered_by_user_model_feature_and_time,
                a_page_of_doubts_looks_at_a_bounded_number_and_the_next_goes_on,
            }
            usage::{
                usage_adds_up_by_day_and_group,
                usage_saturates_instead_of_overflowing,
                usage_comes_in_order_and_within_its_days,
                a_correction_moves_usage,
            }
            pruning::{
                finished_holds_go_once_they_are_old_and_sums_stay,
                holds_are_old_by_their_tenants_clock,
                one_process_walks_at_a_time_and_another_goes_on,
            }
            users::{
                a_user_reads_back_as_written,
                a_user_is_replaced_only_by_the_next_version,
                many_users_are_replaced_all_or_none,
                odd_user_ids_are_told_apart_byte_for_byte,
                users_page_without_gap_or_repeat,
                users_are_filtered_by_plan_org_and_part_of_the_id,
                users_belong_to_their_tenant,
            }
            fences::{
                a_fenced_batch_comes_on_record_once,
                a_batch_that_is_not_next_leaves_nothing,
                a_fence_may_be_all_there_is,
                a_fenced_batch_may_move_holds,
                an_epoch_is_renewed_once,
                of_processes_that_record_the_same_changes_one_does,
                a_deleted_tenants_slot_goes_and_does_not_come_back,
                writes_of_two_processes_have_a_revision_each,
                a_new_database_may_be_opened_by_many_at_once,
            }
            erasing::{
                a_record_goes_over_to_a_pseudonym_and_comes_back,
                holds_and_accounts_go_over_in_one_commit,
                the_past_goes_over_bit_by_bit,
                erased_users_are_looked_at_when_it_is_time,
            }
            tallies::{
                refusals_add_up_by_user_day_and_code,
                the_last_hundred_refusals_of_a_user_stay,
                words_of_another_limiter_are_bounded_by_day,
                old_counters_are_taken_out_bit_by_bit,
                outputs_add_up_by_feature_and_model_and_old_days_go,
                sums_of_outputs_end_where_whole_numbers_do,
            }
            history::{
                a_history_is_exact_for_what_was_just_committed,
                a_history_begins_and_ends_where_it_is_told_to,
                ends_come_in_order_page_by_page_however_long_the_calls_were,
                the_audit_comes_newest_first_in_pages,
            }
            records::{
                a_tenant_is_created_with_its_first_records_or_not_at_all,
                a_tenants_id_is_given_once,
                a_clock_is_kept,
                the_newest_version_of_each_record_is_listed,
                a_deleted_record_is_gone_and_can_come_back,
                all_versions_are_kept_newest_first,
                a_version_follows_the_newest_or_conflicts,
                records_belong_to_their_tenant_or_to_nobody,
                of_writers_at_the_same_time_one_wins,
                the_revision_grows_by_one_with_every_write,
            }
            conditions::{
                a_condition_is_replaced_only_by_the_next_version,
                conditions_belong_to_their_tenant_and_go_with_it,
                a_condition_may_come_with_its_audit_row,
            }
            changes::{
                every_write_tells_what_it_changed,
                an_erasure_tells_of_both_records_and_leaves_no_id,
                what_changes_no_record_is_not_told,
                whoever_asks_knows_their_own_writes,
                whoever_is_too_far_behind_or_ahead_is_told_so,
                changes_come_in_order_while_many_write,
            }
            tenants::{
                a_suspension_is_kept_until_it_ends,
                a_deleted_tenants_id_is_free_and_its_number_is_not,
                what_a_deleted_tenant_had_goes_in_portions_and_nobody_elses,
                what_is_under_way_for_a_deleted_tenant_is_left_out,
                a_purge_goes_on_where_it_was_stopped,
            }
        }
    };
}

/// A file in a directory that goes with the room.
pub struct SqliteRoom(tempfile::TempDir);

impl Room for SqliteRoom {
    fn new() -> Option<Self> {
        Some(Self(tempfile::tempdir().unwrap()))
    }

    async fn open(&self) -> Arc<dyn Ledger> {
        let path = self.0.path().join("apportion.db");
        Arc::new(SqliteLedger::open(&path, Durability::Os).await.unwrap())
    }
}

/// A database of the server that all tests share.
pub struct PostgresRoom(Database);

impl Room for PostgresRoom {
    fn new() -> Option<Self> {
        Some(Self(Postgres::shared()?.with_schema()))
    }

    fn bare() -> Option<Self> {
        Some(Self(Postgres::shared()?.empty()))
    }

    async fn open(&self) -> Arc<dyn Ledger> {
        Arc::new(PostgresLedger::open(&self.0.url(), 6).await.unwrap())
    }
}

contract!(sqlite: crate::contract::ledger::SqliteRoom);
contract!(postgres: crate::contract::ledger::PostgresRoom);
