//! The text format of metrics. The only module that knows the crate for it.
//!
//! A scrape makes the families anew from plain numbers, so nothing else has to hold types of that crate.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// The content type of [`text`]: `OpenMetrics`, which Prometheus has read since version 2.5.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every name begins with this and `_`.
const PREFIX: &str = "cueline";

/// A metric at one instant, with one value for each set of labels.
#[derive(Debug, Clone)]
pub struct Family {
    /// Without the prefix, the unit, and the `_total` of counters.
    name: &'static str,
    help: &'static str,
    metric: Metric,
}

#[derive(Debug, Clone)]
enum Metric {
    Counter(Vec<Sample>),
    Gauge(Vec<Sample>),
    Seconds(Vec<TimeSample>),
    Histogram(Histogram),
}

impl Family {
    /// A number that only grows. `name` is without `cueline_` and `_total`.
    pub fn counter(name: &'static str, help: &'static str, samples: Vec<Sample>) -> Self {
        let metric = Metric::Counter(samples);
        Self { name, help, metric }
    }

    /// A number that grows and falls. `name` is without `cueline_`.
    pub fn gauge(name: &'static str, help: &'static str, samples: Vec<Sample>) -> Self {
        let metric = Metric::Gauge(samples);
        Self { name, help, metric }
    }

    /// A time that grows and falls. `name` is without `cueline_` and `_seconds`.
    pub fn seconds(name: &'static str, help: &'static str, time: Duration) -> Self {
        Self::times(name, help, vec![TimeSample::with(&[], time)])
    }

    /// Times that grow and fall. `name` is without `cueline_` and `_seconds`.
    pub fn times(name: &'static str, help: &'static str, samples: Vec<TimeSample>) -> Self {
        let metric = Metric::Seconds(samples);
        Self { name, help, metric }
    }

    /// The distribution of times. `name` is without `cueline_` and `_seconds`.
    pub fn histogram(name: &'static str, help: &'static str, times: Histogram) -> Self {
        let metric = Metric::Histogram(times);
        Self { name, help, metric }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let seconds = Unit::Seconds;
        let (unit, kind) = match &self.metric {
            Metric::Counter(_) => (None, MetricType::Counter),
            Metric::Gauge(_) => (None, MetricType::Gauge),
            Metric::Seconds(_) => (Some(&seconds), MetricType::Gauge),
            Metric::Histogram(_) => (Some(&seconds), MetricType::Histogram),
        };
        let mut encoder = encoder.encode_descriptor(self.name, self.help, unit, kind)?;
        match &self.metric {
            Metric::Counter(samples) => {
                let samples = samples.iter().map(|sample| (&sample.labels, sample.value));
                encode_each(&mut encoder, samples, |encoder, value| {
                    encoder.encode_counter::<NoLabelSet, u64, u64>(&value, None)
                })
            }
            Metric::Gauge(samples) => {
                let samples = samples.iter().map(|sample| (&sample.labels, sample.value));
                encode_each(&mut encoder, samples, |encoder, value| {
                    encoder.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
                })
            }
            Metric::Seconds(samples) => {
                let samples = samples
                    .iter()
                    .map(|sample| (&sample.labels, sample.seconds));
                encode_each(&mut encoder, samples, |encoder, seconds| {
                    encoder.encode_gauge(&seconds)
                })
            }
            Metric::Histogram(times) => times.encode(&mut encoder),
        }
    }
}

type Labels = Vec<(&'static str, String)>;

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    let labels = labels.iter().map(|(key, text)| (*key, (*text).to_owned()));
    labels.collect()
}

/// One value of a [`Family`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    labels: Labels,
    value: u64,
}

impl Sample {
    /// The only value of a family without labels.
    pub fn only(value: u64) -> Vec<Self> {
        vec![Self::with(&[], value)]
    }

    /// The value for these labels. The caller bounds how many values a label has.
    pub fn with(labels: &[(&'static str, &str)], value: u64) -> Self {
        let labels = owned(labels);
        Self { labels, value }
    }
}

/// One time of a [`Family`].
#[derive(Debug, Clone, PartialEq)]
pub struct TimeSample {
    labels: Labels,
    seconds: f64,
}

impl TimeSample {
    /// The time for these labels. The caller bounds how many values a label has.
    pub fn with(labels: &[(&'static str, &str)], time: Duration) -> Self {
        Self {
            labels: owned(labels),
            seconds: time.as_secs_f64(),
        }
    }

    /// A difference in milliseconds, which may be negative, without labels.
    pub fn difference(ms: i64) -> Self {
        let size = Duration::from_millis(ms.unsigned_abs()).as_secs_f64();
        Self {
            labels: Labels::new(),
            seconds: if ms < 0 { -size } else { size },
        }
    }
}

/// How many times fell into each bucket.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// The upper bound of each bucket, ascending, and the count of this bucket alone.
    pub buckets: Vec<(Duration, u64)>,
    /// The count above the last bound.
    pub above: u64,
    /// The sum of all times.
    pub sum: Duration,
}

impl Histogram {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let bounded = self.buckets.iter();
        let mut buckets: Vec<(f64, u64)> = bounded
            .map(|(bound, count)| (bound.as_secs_f64(), *count))
            .collect();
        // The encoder writes this bound as +Inf.
        buckets.push((f64::INFINITY, self.above));
        let count = buckets.iter().map(|(_, count)| *count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum.as_secs_f64(), count, &buckets, None)
    }
}

/// These families as the body of an answer with the [content type](CONTENT_TYPE) for it. A name may occur once.
pub fn text(families: Vec<Family>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = self.0.iter();
        families.try_for_each(|family| family.encode(&mut encoder))
    }
}

fn encode_each<'a, T>(
    encoder: &mut MetricEncoder<'_>,
    samples: impl Iterator<Item = (&'a Labels, T)>,
    encode: impl Fn(&mut MetricEncoder<'_>, T) -> fmt::Result,
) -> fmt::Result {
    for (labels, value) in samples {
        if labels.is_empty() {
            encode(encoder, value)?;
        } else {
            let mut labelled = encoder.encode_family(labels)?;
            encode(&mut labelled, value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_with_prefix_unit_and_escaped_labels() {
        let times = Histogram {
            buckets: vec![
                (Duration::from_millis(1), 2),
                (Duration::from_millis(500), 0),
            ],
            above: 1,
            sum: Duration::from_millis(1_500),
        };
        let queue = Sample::with(&[("queue", "a\"b\\c\nd"), ("state", "ready")], 7);
        let families = vec![
            Family::counter("fires", "Fires.", Sample::only(3)),
            Family::gauge("queue_messages", "Depth.", vec![queue]),
            Family::gauge("runs", "None.", Vec::new()),
            Family::seconds("uptime", "Up.", Duration::from_millis(2_500)),
            Family::times(
                "age",
                "Old.",
                vec![TimeSample::with(&[("queue", "q")], Duration::from_secs(1))],
            ),
            Family::times("offset", "Off.", vec![TimeSample::difference(-250)]),
            Family::histogram("lateness", "Late.", times),
        ];
        let expected = r#"# HELP cueline_fires Fires.
# TYPE cueline_fires counter
cueline_fires_total 3
# HELP cueline_queue_messages Depth.
# TYPE cueline_queue_messages gauge
cueline_queue_messages{queue="a\"b\\c\nd",state="ready"} 7
# HELP cueline_runs None.
# TYPE cueline_runs gauge
# HELP cueline_uptime_seconds Up.
# TYPE cueline_uptime_seconds gauge
# UNIT cueline_uptime_seconds seconds
cueline_uptime_seconds 2.5
# HELP cueline_age_seconds Old.
# TYPE cueline_age_seconds gauge
# UNIT cueline_age_seconds seconds
cueline_age_seconds{queue="q"} 1.0
# HELP cueline_offset_seconds Off.
# TYPE cueline_offset_seconds gauge
# UNIT cueline_offset_seconds seconds
cueline_offset_seconds -0.25
# HELP cueline_lateness_seconds Late.
# TYPE cueline_lateness_seconds histogram
# UNIT cueline_lateness_seconds seconds
cueline_lateness_seconds_sum 1.5
cueline_lateness_seconds_count 3
cueline_lateness_seconds_bucket{le="0.001"} 2
cueline_lateness_seconds_bucket{le="0.5"} 2
cueline_lateness_seconds_bucket{le="+Inf"} 3
# EOF
"#;
        assert_eq!(text(families), expected);
    }
}
