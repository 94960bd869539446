//! The second JSON message: what each end counted, the client first.

use serde_json::{Map, Value, json};

use super::error::WireError;
use crate::outcome::{Cpu, Datagrams};

/// What one end tells of a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// `cpu_util_total`, `cpu_util_user`, `cpu_util_system`: of the process, percent of one CPU.
    pub cpu_percent: [f64; 3],
    /// `sender_has_retransmits`: whether the sender knows them; -1 where this end does not send.
    pub has_retransmits: i64,
    /// `congestion_used`.
    pub congestion: Option<String>,
    /// `server_output_json` or `server_output_text`.
    pub server_output: Option<ServerOutput>,
    /// `streams`.
    pub streams: Vec<StreamResults>,
    /// What another perpacket has more to tell: under the key `perpacket`, which iperf3 ignores.
    pub more: Option<More>,
}

/// What a server printed.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerOutput {
    /// Of a server with `-J`.
    Json(Value),
    /// Of one without.
    Text(String),
}

/// One stream. Counts are of what was not omitted, but for `errors` and `packets`, which contain what was omitted where
/// `omitted` is there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamResults {
    /// `id`: 1, 3, 4, 5…
    pub id: u64,
    /// `bytes`.
    pub bytes: u64,
    /// `retransmits`; none is -1.
    pub retransmits: Option<u64>,
    /// `jitter`, s. UDP.
    pub jitter: f64,
    /// `errors`: datagrams that were lost. UDP.
    pub errors: u64,
    /// `packets`: datagrams that were sent, or the highest number that was received. UDP.
    pub packets: u64,
    /// `omitted_errors` and `omitted_packets` (since 3.14).
    pub omitted: Option<(u64, u64)>,
    /// `start_time` and `end_time`, s of this end's clock (since 3.2).
    pub times: Option<(f64, f64)>,
}

/// What perpacket tells perpacket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct More {
    /// What the CPUs of the host did: iperf3's figures are of its process only.
    pub cpu: Option<Cpu>,
    /// What became of the datagrams of each stream that this end received, with duplicates and what came late.
    pub datagrams: Vec<Option<Datagrams>>,
}

/// Streams that are taken at most: 128 each way.
const STREAMS_MAX: usize = 256;
/// What stands for unknown in `retransmits`.
const UNKNOWN: i64 = -1;

impl Results {
    /// Reads the message. Like iperf3, it refuses one without a key that is not optional.
    pub fn parse(value: Value) -> Result<Self, WireError> {
        let Value::Object(mut keys) = value else {
            return meaning("the results are no object");
        };
        let streams = match keys.get("streams") {
            Some(Value::Array(streams)) if streams.len() <= STREAMS_MAX => {
                streams.iter().map(stream).collect::<Result<Vec<_>, _>>()?
            }
            Some(Value::Array(streams)) => {
                return meaning(format!("the results have {} streams", streams.len()));
            }
            _ => return meaning("the results have no streams"),
        };
        let cpu_percent = [
            float(&keys, "cpu_util_total")?,
            float(&keys, "cpu_util_user")?,
            float(&keys, "cpu_util_system")?,
        ];
        let server_output = match (keys.remove("server_output_json"), keys.remove("server_output_text")) {
            (Some(output), _) => Some(ServerOutput::Json(output)),
            (None, Some(Value::String(text))) => Some(ServerOutput::Text(text)),
            _ => None,
        };
        Ok(Self {
            cpu_percent,
            has_retransmits: float(&keys, "sender_has_retransmits")? as i64,
            congestion: keys.get("congestion_used").and_then(Value::as_str).map(str::to_owned),
            server_output,
            streams,
            more: keys.remove("perpacket").and_then(More::parse),
        })
    }

    /// The message.
    pub fn to_json(&self) -> Value {
        let [total, user, system] = self.cpu_percent.map(finite);
        let mut keys = Map::new();
        keys.insert("cpu_util_total".into(), json!(total));
        keys.insert("cpu_util_user".into(), json!(user));
        keys.insert("cpu_util_system".into(), json!(system));
        keys.insert("sender_has_retransmits".into(), json!(self.has_retransmits));
        if let Some(congestion) = &self.congestion {
            keys.insert("congestion_used".into(), json!(congestion));
        }
        match &self.server_output {
            Some(ServerOutput::Json(output)) => keys.insert("server_output_json".into(), output.clone()),
            Some(ServerOutput::Text(text)) => keys.insert("server_output_text".into(), json!(text)),
            None => None,
        };
        keys.insert("streams".into(), self.streams.iter().map(StreamResults::json).collect());
        if let Some(more) = &self.more {
            keys.insert("perpacket".into(), json!({ "cpu": more.cpu, "datagrams": more.datagrams }));
        }
        Value::Object(keys)
    }
}

impl StreamResults {
    fn json(&self) -> Value {
        let mut keys = Map::new();
        keys.insert("id".into(), json!(self.id));
        keys.insert("bytes".into(), json!(self.bytes));
        let retransmits = self.retransmits.map_or(UNKNOWN, |count| i64::try_from(count).unwrap_or(i64::MAX));
        keys.insert("retransmits".into(), json!(retransmits));
        keys.insert("jitter".into(), json!(finite(self.jitter)));
        keys.insert("errors".into(), json!(self.errors));
        keys.insert("packets".into(), json!(self.packets));
        if let Some((errors, packets)) = self.omitted {
            keys.insert("omitted_errors".into(), json!(errors));
            keys.insert("omitted_packets".into(), json!(packets));
        }
        if let Some((start, end)) = self.times {
            keys.insert("start_time".into(), json!(finite(start)));
            keys.insert("end_time".into(), json!(finite(end)));
        }
        Value::Object(keys)
    }
}

impl More {
    fn parse(value: Value) -> Option<Self> {
        let Value::Object(mut keys) = value else { return None };
        let mut take = |key: &str| keys.remove(key).unwrap_or_default();
        let cpu = serde_json::from_value(take("cpu")).ok()?;
        let datagrams: Vec<_> = serde_json::from_value(take("datagrams")).ok()?;
        (datagrams.len() <= STREAMS_MAX).then_some(Self { cpu, datagrams })
    }
}

fn stream(value: &Value) -> Result<StreamResults, WireError> {
    let Some(keys) = value.as_object() else {
        return meaning("a stream of the results is no object");
    };
    let optional =
        |key: &str| keys.get(key).filter(|value| value.is_number()).map(|_| count(keys, key)).transpose();
    let omitted = match (optional("omitted_errors")?, optional("omitted_packets")?) {
        (Some(errors), Some(packets)) => Some((errors, packets)),
        (None, None) => None,
        _ => return meaning("a stream has one of omitted_errors and omitted_packets without the other"),
    };
    let times = match (float(keys, "start_time"), float(keys, "end_time")) {
        (Ok(start), Ok(end)) => Some((start, end)),
        _ => None,
    };
    Ok(StreamResults {
        id: count(keys, "id")?,
        bytes: count(keys, "bytes")?,
        // 3.6 wrote the -1 as a number without sign at times
        retransmits: u64::try_from(float(keys, "retransmits")? as i64)
            .ok()
            .filter(|&n| n < u64::from(u32::MAX - 1)),
        jitter: float(keys, "jitter")?,
        errors: count(keys, "errors")?,
        packets: count(keys, "packets")?,
        omitted,
        times,
    })
}

/// A count. iperf3's are signed and some wrap around to negative numbers: those are told as 0, as what they stand for is
/// not known.
fn count(keys: &Map<String, Value>, key: &str) -> Result<u64, WireError> {
    match keys.get(key).and_then(Value::as_u64) {
        Some(count) => Ok(count),
        None => Ok(float(keys, key)?.max(0.0) as u64), // saturates; what is above 2^53 came as a float
    }
}

fn float(keys: &Map<String, Value>, key: &str) -> Result<f64, WireError> {
    match keys.get(key).and_then(Value::as_f64) {
        Some(value) if value.is_finite() => Ok(value),
        _ => meaning(format!("the results have no number {key}")),
    }
}

/// JSON has no infinities, and no NaN.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

fn meaning<T>(what: impl Into<String>) -> Result<T, WireError> {
    Err(WireError::Meaning(what.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> Results {
        Results {
            cpu_percent: [12.5, 2.5, 10.0],
            has_retransmits: 1,
            congestion: Some("cubic".into()),
            server_output: Some(ServerOutput::Text("a line\n".into())),
            streams: vec![
                StreamResults {
                    id: 1,
                    bytes: 5_000_000_000,
                    retransmits: Some(3),
                    times: Some((0.0, 2.5)),
                    ..StreamResults::default()
                },
                StreamResults {
                    id: 3,
                    jitter: 0.001,
                    errors: 2,
                    packets: 9,
                    omitted: Some((1, 4)),
                    ..StreamResults::default()
                },
            ],
            more: Some(More {
                cpu: None,
                datagrams: vec![None, Some(Datagrams { received: 7, duplicate: 1, ..Datagrams::default() })],
            }),
        }
    }

    #[test]
    fn results_come_back() {
        assert_eq!(Results::parse(example().to_json()).unwrap(), example());
    }

    #[test]
    fn without_a_key_that_has_to_be_there_they_are_refused() {
        for key in ["cpu_util_total", "cpu_util_user", "cpu_util_system", "sender_has_retransmits", "streams"]
        {
            let mut value = example().to_json();
            value.as_object_mut().unwrap().remove(key);
            assert!(Results::parse(value).is_err(), "{key}");
        }
        for key in ["id", "bytes", "retransmits", "jitter", "errors", "packets", "omitted_errors"] {
            let mut value = example().to_json();
            value["streams"][1].as_object_mut().unwrap().remove(key);
            assert!(Results::parse(value).is_err(), "{key}");
        }
    }

    #[test]
    fn unknown_retransmits_are_none_however_they_are_written() {
        for (written, meant) in
            [("-1", None), ("4294967295", None), ("4294967294", None), ("0", Some(0)), ("17", Some(17))]
        {
            let mut value = example().to_json();
            value["streams"][0]["retransmits"] = serde_json::from_str(written).unwrap();
            assert_eq!(Results::parse(value).unwrap().streams[0].retransmits, meant, "{written}");
        }
    }

    #[test]
    fn what_is_not_finite_is_never_written() {
        let value = Results { cpu_percent: [f64::NAN, f64::INFINITY, 0.0], ..Results::default() }.to_json();
        assert_eq!((&value["cpu_util_total"], &value["cpu_util_user"]), (&json!(0.0), &json!(0.0)));
    }

    #[test]
    fn negative_counts_are_not_loss() {
        let mut value = example().to_json();
        value["streams"][1]["errors"] = json!(-5);
        assert_eq!(Results::parse(value).unwrap().streams[1].errors, 0);
    }

    proptest! {
        #[test]
        fn a_changed_message_is_read_without_harm(at in 0_usize..2000, byte: u8) {
            let mut text = serde_json::to_vec(&example().to_json()).unwrap();
            let at = at % text.len();
            text[at] = byte;
            if let Ok(value) = serde_json::from_slice(&text) {
                let _ = Results::parse(value);
            }
        }
    }
}
