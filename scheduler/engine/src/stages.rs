//! Creates all stages and connects them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cueline_broker::{Broker, Channel, Listener, QueueId};
use cueline_model::StoreId;
use cueline_protocol::SigningKeys;
use cueline_runtime::{Activator, BurstGate, Clock, Duty as _};
use cueline_store::{Audit, Store};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::alarms::checks::{CheckAlarms, Watched};
use crate::alarms::sender::SendAlarms;
use crate::claims::NodeClaims;
use crate::counters::Counters;
use crate::database_clock::DatabaseClock;
use crate::error::EngineError;
use crate::liveness::broker_reach::BrokerReach;
use crate::liveness::executor_attempts::ExecutorAttempts;
use crate::liveness::executor_failover::ExecutorFailover;
use crate::liveness::failover::Failover;
use crate::liveness::forget::ForgetExecutors;
use crate::liveness::heartbeat_reader::HeartbeatReader;
use crate::liveness::heartbeats::Heartbeats;
use crate::liveness::holdings::{Holdings, LEAST_PASSED_AFTER_MS};
use crate::liveness::incarnations::Incarnations;
use crate::liveness::lease_times::LeaseTimesCheck;
use crate::liveness::loopback::Loopback;
use crate::liveness::name_conflicts::NameConflicts;
use crate::liveness::node_lease::NodeLease;
use crate::liveness::not_held::NotHeld;
use crate::liveness::pings::Pings;
use crate::liveness::queue_provisioner::QueueProvisioner;
use crate::liveness::reconcile::{Reconcile, Reconciler};
use crate::liveness::registry::Registry;
use crate::liveness::republish_limit::RepublishLimit;
use crate::liveness::self_check::SelfCheck;
use crate::liveness::unanswered::Unanswered;
use crate::maintenance::backfills::Backfills;
use crate::maintenance::cancellations::Cancellations;
use crate::maintenance::dead_letters::DeadLetters;
use crate::maintenance::overdue::Overdue;
use crate::maintenance::refused_triggers::RefusedTriggers;
use crate::maintenance::retention::Retention;
use crate::maintenance::time_zones::TimeZones;
use crate::maintenance::window_plans::WindowPlans;
use crate::options::EngineOptions;
use crate::origin::claims::Claims;
use crate::origin::enrolment::Enrolment;
use crate::origin::forged_messages::ForgedMessages;
use crate::origin::heartbeat_order::HeartbeatOrder;
use crate::origin::keys::RefreshKeys;
use crate::origin::origins::Origins;
use crate::pipeline::broadcast_hold::BroadcastHold;
use crate::pipeline::claim::Claim;
use crate::pipeline::confirm::Confirm;
use crate::pipeline::earlier_runs::EarlierRuns;
use crate::pipeline::ended_runs::EndedRuns;
use crate::pipeline::group_lanes::GroupLanes;
use crate::pipeline::ingest::Ingest;
use crate::pipeline::limited_runs::LimitedRuns;
use crate::pipeline::manual_trigger::ManualTrigger;
use crate::pipeline::outstanding_attempts::RefreshOutstanding;
use crate::pipeline::pace::Pace;
use crate::pipeline::prepare::Prepare;
use crate::pipeline::publish::Publish;
use crate::pipeline::room::RoomQueue;
use crate::pipeline::trigger_requests::TriggerRequests;
use crate::pipeline::trigger_writer::{TriggerSigner, TriggerWriter};
use crate::pipeline::unroutable_runs::UnroutableRuns;
use crate::quotas::NamespaceQuotas;
use crate::quotas::group_rates::GroupRates;
use crate::quotas::refresh::RefreshQuotas;
use crate::refused_messages::RefusedMessages;
use crate::route::{Outstanding, Router};

/// The stages of one engine, not yet running.
pub(crate) struct Stages {
    pub(crate) claims: Arc<NodeClaims>,
    pub(crate) admin: Arc<Admin>,
    // The pipeline, in its order.
    pub(crate) claim: Claim,
    pub(crate) prepare: Prepare,
    pub(crate) publish: Publish,
    pub(crate) confirm: Confirm,
    pub(crate) ingest: Arc<Ingest>,
    pub(crate) trigger_requests: Arc<TriggerRequests>,
    // Liveness.
    pub(crate) node_lease: NodeLease,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) heartbeat_inbox: Listener,
    pub(crate) loopback: Loopback,
    pub(crate) name_conflicts: Arc<NameConflicts>,
    pub(crate) queues: Arc<QueueProvisioner>,
    pub(crate) failover: Failover,
    pub(crate) forget_executors: ForgetExecutors,
    pub(crate) reconcile: Reconcile,
    // What routes depend on.
    pub(crate) pings: Pings,
    pub(crate) refresh_outstanding: RefreshOutstanding,
    // The origin of workers' messages. `None` without seals.
    pub(crate) enrolment: Option<Arc<Enrolment>>,
    pub(crate) refresh_keys: Option<RefreshKeys>,
    // Maintenance.
    pub(crate) cancellations: Cancellations,
    pub(crate) dead_letters: Arc<DeadLetters>,
    pub(crate) overdue: Overdue,
    pub(crate) refresh_quotas: RefreshQuotas,
    pub(crate) retention: Retention,
    pub(crate) time_zones: TimeZones,
    pub(crate) window_plans: WindowPlans,
    pub(crate) backfills: Backfills,
    pub(crate) send_alarms: SendAlarms,
    pub(crate) check_alarms: CheckAlarms,
}

/// The values that several stages share. Private to this file, so that no stage depends on all of them.
struct Parts {
    store: Arc<dyn Store>,
    audit: Arc<dyn Audit>,
    store_id: StoreId,
    broker: Broker,
    clock: Arc<DatabaseClock>,
    claims: Arc<NodeClaims>,
    registry: Arc<Registry>,
    outstanding: Arc<Outstanding>,
    self_check: Arc<SelfCheck>,
    broker_reach: Arc<BrokerReach>,
    unanswered: Arc<Mutex<Unanswered>>,
    counters: Arc<Counters>,
    quotas: Arc<NamespaceQuotas>,
    group_rates: Arc<GroupRates>,
    origins: Origins,
    forged: Arc<ForgedMessages>,
    refused: RefusedMessages,
    claims_to_keys: Arc<Claims>,
    burst_gate: Arc<BurstGate>,
    queues: Arc<QueueProvisioner>,
    name_conflicts: Arc<NameConflicts>,
    signer: TriggerSigner,
    /// Wakes the claim stage.
    claim: Activator,
    /// Wakes the duty that sends cancellations.
    cancellations: Activator,
}

/// `hand!(parts => Stage { a, b; c: 1 })` creates a stage from clones of the parts `a` and `b` and a field of its own.
macro_rules! hand {
    ($parts:expr => $stage:ident { $($part:ident),* $(; $($field:ident: $value:expr),*)? }) => {
        $stage { $($part: $parts.$part.clone(),)* $($($field: $value,)*)? }
    };
}

impl Stages {
    /// Declares the queues that all nodes share, registers this node, and loads the live executors from the store.
    ///
    /// At most `max_confirmations` wait for the store. At that limit publishing waits.
    pub(crate) async fn open(
        store: Arc<dyn Store>,
        broker: Broker,
        clock: Arc<dyn Clock>,
        options: &EngineOptions,
        keys: Option<SigningKeys>,
        origins: Origins,
        max_confirmations: usize,
    ) -> Result<Self, EngineError> {
        let heartbeat_inbox = broker.listen(&Channel::Heartbeats).await?;
        for queue in [QueueId::Results, QueueId::Requests, QueueId::Dead] {
            broker.declare(&queue).await?;
        }
        let store_id = store.store_id().await?;
        origins.load().await?;
        let parts = Parts::new(store, store_id, broker, clock, options, keys, origins);
        let mut stages = parts.stages(options, heartbeat_inbox, max_confirmations);
        stages.node_lease.renew().await?;
        stages.heartbeats.restore().await?;
        // The first fires are within the quotas.
        stages.refresh_quotas.activate().await?;
        Ok(stages)
    }
}

impl Parts {
    fn new(
        store: Arc<dyn Store>,
        store_id: StoreId,
        broker: Broker,
        clock: Arc<dyn Clock>,
        options: &EngineOptions,
        keys: Option<SigningKeys>,
        origins: Origins,
    ) -> Self {
        let clock = Arc::new(DatabaseClock::new(clock));
        let counters = Arc::<Counters>::default();
        let self_check = Arc::new(SelfCheck::new(options.failover_after_ms));
        Self {
            queues: Arc::new(QueueProvisioner::new(
                store.clone(),
                broker.clone(),
                clock.clone(),
            )),
            name_conflicts: Arc::new(NameConflicts::new(broker.clone())),
            registry: Arc::new(Registry::new(options.executor_dead_after_ms)),
            broker_reach: Arc::new(BrokerReach::new(self_check.clone(), options.lease_ms)),
            self_check,
            signer: TriggerSigner {
                keys,
                signs_native: options.sign_native,
                valid_ms: options.trigger_valid_ms,
            },
            forged: Arc::new(ForgedMessages::new(clock.clone(), counters.clone())),
            refused: RefusedMessages {
                store: store.clone(),
                clock: clock.clone(),
                counters: counters.clone(),
            },
            audit: store.clone(),
            store,
            store_id,
            broker,
            clock,
            origins,
            claims: Arc::default(),
            claims_to_keys: Arc::default(),
            unanswered: Arc::default(),
            outstanding: Arc::default(),
            counters,
            quotas: Arc::default(),
            group_rates: Arc::default(),
            burst_gate: Arc::default(),
            claim: Activator::new(),
            cancellations: Activator::new(),
        }
    }

    /// Gives each stage its parts and options.
    #[rustfmt::skip] // A table is easier to read with one stage to a line.
    fn stages(&self, o: &EngineOptions, heartbeat_inbox: Listener, max_confirmations: usize) -> Stages {
        let (confirmed, confirmations) = mpsc::channel(max_confirmations);
        let triggers = TriggerWriter::new(self.signer.clone(), self.store_id);
        let router = Router::new(StdRng::seed_from_u64(o.seed), self.outstanding.clone());
        Stages {
            claims: self.claims.clone(),
            admin: Arc::new(hand!(self => Admin {
                store, audit, broker, clock, claims, registry, self_check, broker_reach, counters, quotas, claim, cancellations;
                trigger: self.trigger(o), attempts: self.attempts(), reconciler: self.reconciler(o)
            })),
            claim: hand!(self => Claim {
                store, clock, claims, self_check, broker_reach, counters, quotas; runs_per_job: 1, is_behind: false, broadcast_hold: BroadcastHold::default(), pace: Pace::new(o.max_fires_ahead.max(o.claim_batch)),
                lookahead_ms: o.lookahead_ms, poll_ms: o.poll_ms, batch: o.claim_batch, batch_now: o.claim_batch, max_claimed: o.max_claimed
            }),
            prepare: hand!(self => Prepare {
                store, clock, claims, registry, counters; unroutable: self.unroutable(o), lanes: self.group_lanes(o), limits: self.limited_runs(o), room: self.room(o), router: router,
                earlier_runs: self.earlier_runs(), triggers: triggers,
                ahead_ms: o.prepare_ahead_ms, batch: o.dispatch_batch
            }),
            publish: hand!(self => Publish {
                store, broker, clock, claims, registry, signer, burst_gate, counters; confirmed: confirmed, batch: o.publish_batch
            }),
            confirm: hand!(self => Confirm {
                store, burst_gate; confirmed: confirmations, batch: o.confirm_batch, unwritten: Vec::new()
            }),
            ingest: Arc::new(hand!(self => Ingest {
                store, store_id, broker, clock, burst_gate, counters, origins, forged, refused, registry, outstanding, claim, claims; poll_ms: o.poll_ms, batch: o.ingest_batch
            })),
            trigger_requests: Arc::new(hand!(self => TriggerRequests { broker, clock, refused; trigger: self.trigger(o) })),
            node_lease: hand!(self => NodeLease {
                store, clock, claims, self_check, broker_reach, claim; node_name: o.node_name.clone(), lease_ms: o.lease_ms, turns_cut_off: 0
            }),
            heartbeats: hand!(self => Heartbeats {
                store, clock, claims, registry, self_check, queues, name_conflicts, counters;
                reader: self.heartbeat_reader(), incarnations: Incarnations::new(o.failover_after_ms), lease_times: LeaseTimesCheck::new(o.failover_after_ms),
                unstored: BTreeMap::new()
            }),
            name_conflicts: self.name_conflicts.clone(),
            heartbeat_inbox,
            loopback: Loopback::new(self.broker.clone(), self.clock.clone(), self.self_check.clone()),
            queues: self.queues.clone(),
            failover: self.failover(o),
            forget_executors: hand!(self => ForgetExecutors {
                store, broker, clock, registry, self_check, queues; forget_after_ms: o.forget_executors_after_ms
            }),
            reconcile: hand!(self => Reconcile {
                broker, clock, claim; reconciler: self.reconciler(o), older_than_ms: o.reconcile_after_ms, after: None, not_held: NotHeld::default(),
                limit: RepublishLimit::default()
            }),
            pings: hand!(self => Pings { registry, clock, claims; holdings: self.holdings(o), running: JoinSet::new() }),
            refresh_outstanding: RefreshOutstanding { earlier_runs: self.earlier_runs() },
            enrolment: self.enrolment().map(Arc::new),
            refresh_keys: self.origins.keys().map(|keys| RefreshKeys { keys }),
            cancellations: hand!(self => Cancellations { store, store_id, broker, registry }),
            dead_letters: Arc::new(hand!(self => DeadLetters {
                store, broker, clock, claim, counters, origins, forged;
                letters: self.refused.clone(), refused: hand!(self => RefusedTriggers { store, store_id, signer; holdings: self.holdings(o) })
            })),
            overdue: hand!(self => Overdue { store, clock, counters, claim; unroutable: self.unroutable(o), slack_ms: o.overdue_slack_ms }),
            refresh_quotas: hand!(self => RefreshQuotas { store, clock, quotas, group_rates }),
            time_zones: hand!(self => TimeZones { store; noted: None }),
            window_plans: hand!(self => WindowPlans { store }),
            backfills: hand!(self => Backfills { store, claim }),
            send_alarms: SendAlarms::new(self.store.clone(), o.alarm_transport.clone()),
            check_alarms: hand!(self => CheckAlarms { store, clock, registry, self_check, broker_reach;
                holder: o.node_name.clone(), watched: Watched::default(), has_levels: true, absent: BTreeMap::new()
            }),
            retention: hand!(self => Retention { store, audit;
                runs_kept_ms: o.retention_ms, audit_kept_ms: o.audit_retention_ms, letters_kept_ms: o.dead_letter_retention_ms, alarms_kept_ms: o.alarm_retention_ms, swept_to: None
            }),
        }
    }

    fn earlier_runs(&self) -> EarlierRuns {
        hand!(self => EarlierRuns { store, clock, outstanding })
    }

    fn trigger(&self, o: &EngineOptions) -> ManualTrigger {
        hand!(self => ManualTrigger { store, claims, clock, broker_reach, quotas, claim; max_claimed: o.max_claimed })
    }

    fn heartbeat_reader(&self) -> HeartbeatReader {
        hand!(self => HeartbeatReader {
            origins, forged; claims: self.claims_to_keys.clone(), order: HeartbeatOrder::default()
        })
    }

    fn enrolment(&self) -> Option<Enrolment> {
        let keys = self.origins.keys()?;
        Some(hand!(self => Enrolment {
            store, broker, clock, forged; keys: keys, claims: self.claims_to_keys.clone()
        }))
    }

    fn attempts(&self) -> ExecutorAttempts {
        hand!(self => ExecutorAttempts { store, store_id, broker, clock, counters, refused })
    }

    fn holdings(&self, o: &EngineOptions) -> Holdings {
        let passed_after_ms = o
            .reconcile_after_ms
            .saturating_mul(2)
            .max(LEAST_PASSED_AFTER_MS);
        hand!(self => Holdings {
            broker, registry, clock, store_id, unanswered, origins, forged; trigger_valid_ms: o.trigger_valid_ms, passed_after_ms: passed_after_ms
        })
    }

    fn reconciler(&self, o: &EngineOptions) -> Reconciler {
        hand!(self => Reconciler { store, claims, counters; holdings: self.holdings(o) })
    }

    fn unroutable(&self, o: &EngineOptions) -> UnroutableRuns {
        hand!(self => UnroutableRuns {
            store, clock, claims, self_check, counters, claim; max_held: o.max_unroutable
        })
    }

    fn group_lanes(&self, o: &EngineOptions) -> GroupLanes {
        hand!(self => GroupLanes {
            store, clock, claims, registry, claim;
            ends: self.ended_runs(), max_held: o.max_unroutable, following: HashMap::new()
        })
    }

    fn limited_runs(&self, o: &EngineOptions) -> LimitedRuns {
        hand!(self => LimitedRuns {
            store, clock, claims, claim, group_rates; ends: self.ended_runs(), max_held: o.max_unroutable
        })
    }

    fn ended_runs(&self) -> EndedRuns {
        hand!(self => EndedRuns { store, claims, counters, claim })
    }

    fn room(&self, o: &EngineOptions) -> RoomQueue {
        hand!(self => RoomQueue { store, clock, claims, registry, claim; max_held: o.max_unroutable })
    }

    fn failover(&self, o: &EngineOptions) -> Failover {
        let every = Duration::from_millis((o.failover_after_ms / 10).clamp(100, 2_000));
        let of_executor = hand!(self => ExecutorFailover {
            store, broker, clock, registry, self_check, counters; attempts: self.attempts()
        });
        hand!(self => Failover {
            store, broker, clock, self_check, counters, claim;
            of_executor: of_executor, every: every, silent: HashMap::new()
        })
    }
}
