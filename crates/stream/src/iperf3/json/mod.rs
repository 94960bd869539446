//! iperf3's JSON, as `iperf3 -J` and `iperf3 --json-stream` print it: the keys of 3.12, with those that later versions added.
//!
//! Where iperf3 is known to be wrong, the figure is right under the same key: `seconds` of a receiver are its own, not the
//! sender's; lost datagrams are never negative, contain what was lost at the end where the sender told how many it
//! sent, and have one denominator everywhere: the datagrams that were sent; jitter is a finite number. Where iperf3 writes 0
//! for what it does not know (`max_snd_cwnd` of the other end), so does this.
//!
//! | file | holds |
//! |---|---|
//! | `start` | [`Facts`], and the object `start` |
//! | `counts` | intervals and streams, their sums, CPU |

mod counts;
mod start;

use serde_json::{Map, Value, json};

pub use self::start::{Connected, Facts};
use super::results::ServerOutput;
use crate::engine::End;
use crate::outcome::{Exchanged, Interval};
use crate::plan::Plan;

/// Everything that is known of a test that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Test<'a> {
    /// At which end the output is made.
    pub end: End,
    /// What was asked for.
    pub plan: &'a Plan,
    /// What is known beside it.
    pub facts: &'a Facts,
    /// What both ends counted.
    pub exchanged: &'a Exchanged,
    /// What the server printed.
    pub server_output: Option<&'a ServerOutput>,
}

/// The whole document, as `-J` prints it.
pub fn document(test: &Test<'_>) -> Value {
    let own = counts::own(test);
    let intervals: Vec<_> =
        own.intervals.iter().map(|interval| interval_object(test.end, test.plan, interval)).collect();
    let mut document = Map::new();
    document.insert("start".into(), start_object(test.plan, test.facts));
    document.insert("intervals".into(), Value::Array(intervals));
    document.insert("end".into(), counts::end(test));
    if let Some(title) = &test.facts.title {
        document.insert("title".into(), json!(title));
    }
    if let Some(data) = &test.facts.extra_data {
        document.insert("extra_data".into(), json!(data));
    }
    match test.server_output {
        Some(ServerOutput::Json(output)) => document.insert("server_output_json".into(), output.clone()),
        Some(ServerOutput::Text(text)) => document.insert("server_output_text".into(), json!(text)),
        None => None,
    };
    Value::Object(document)
}

/// The document of a test that failed: what there is of it, and the error.
pub fn failure(plan: &Plan, facts: &Facts, error: &str) -> Value {
    json!({ "start": start_object(plan, facts), "intervals": [], "end": {}, "error": error })
}

/// The same as `--json-stream` prints it: a value for each line.
pub fn events(test: &Test<'_>) -> Vec<Value> {
    let mut events = vec![event("start", start_object(test.plan, test.facts))];
    let intervals = counts::own(test).intervals.iter();
    events
        .extend(intervals.map(|interval| event("interval", interval_object(test.end, test.plan, interval))));
    events.push(event("end", counts::end(test)));
    match test.server_output {
        Some(ServerOutput::Json(output)) => events.push(event("server_output_json", output.clone())),
        Some(ServerOutput::Text(text)) => events.push(event("server_output_text", json!(text))),
        None => {}
    }
    events
}

/// One line of `--json-stream`: events are `start`, `interval`, `end`, `error`, `server_output_text` and
/// `server_output_json`.
pub fn event(name: &str, data: Value) -> Value {
    json!({ "event": name, "data": data })
}

/// What stands under `start`.
pub fn start_object(plan: &Plan, facts: &Facts) -> Value {
    start::object(plan, facts)
}

/// One element of `intervals`.
pub fn interval_object(end: End, plan: &Plan, interval: &Interval) -> Value {
    counts::interval(end, plan, interval)
}
