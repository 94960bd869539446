//! The search against published figures: the draft's worked example, and the example of the reference library.
#![allow(clippy::unwrap_used)]

use measure::search::{
    Class, Criterion, Ending, Goal, Limits, Next, Sample, Search, TrialResult, classify,
    conditional_throughput, exceed_ratios,
};
use serde_json::Value;

fn data() -> Value {
    serde_json::from_str(include_str!("data/mlrsearch-example.json")).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// The worked example of the draft: 59 short trials without loss, and so on. Two of the 24 classes that are printed
/// contradict the ratios that are printed above them; the data names them.
#[test]
fn every_classification_of_the_worked_example_comes_out() {
    let data = data();
    let goals: Vec<Criterion> = data["goals"].as_array().unwrap().iter().map(criterion).collect();
    let mut samples = Vec::new();
    let (mut as_printed, mut as_follows) = (0, 0);
    for (point, index) in data["points"].as_array().unwrap().iter().zip(1u64..) {
        add(point, &mut samples);
        for (column, goal) in goals.iter().enumerate() {
            let (at_best, at_worst) = exceed_ratios(goal, &samples);
            assert_percent(at_best, &point["optimistic_exceed_percent"][column]);
            assert_percent(at_worst, &point["pessimistic_exceed_percent"][column]);
            let misprint = data["misprints"].as_array().unwrap().iter().find(|misprint| {
                misprint["point"] == index && misprint["goal"] == data["goals"][column]["name"]
            });
            let class = match misprint {
                Some(misprint) => {
                    assert_eq!(misprint["published"], point["class"][column]);
                    assert!(at_best > goal.exceed_ratio, "no misprint: {point}");
                    as_follows += 1;
                    &misprint["follows"]
                }
                None => {
                    as_printed += 1;
                    &point["class"][column]
                }
            };
            let class: Class = serde_json::from_value(class.clone()).unwrap();
            assert_eq!(classify(goal, &samples), class, "{goal:?} {point}");
        }
    }
    assert_eq!((as_printed, as_follows), (22, 2));
}

#[test]
fn every_conditional_throughput_of_the_worked_example_comes_out() {
    let data = data();
    let mut samples = Vec::new();
    data["points"].as_array().unwrap().iter().for_each(|point| add(point, &mut samples));
    let published = data["conditional_throughput_fps"].as_object().unwrap();
    assert_eq!(published.len(), 3);
    for (name, published) in published {
        let goal = data["goals"].as_array().unwrap().iter().find(|goal| goal["name"] == **name).unwrap();
        let ours = conditional_throughput(number(&data["load_fps"]), &criterion(goal), &samples);
        assert_eq!(ours, Some(number(published)), "{name}");
    }
}

fn add(point: &Value, samples: &mut Vec<Sample>) {
    for group in point["add"].as_array().unwrap() {
        let seconds = number(&group["s"]);
        let sample = Sample { duration_s: seconds, effective_s: seconds, loss_ratio: number(&group["loss"]) };
        samples.extend(vec![sample; group["n"].as_u64().unwrap() as usize]);
    }
}

/// Printed to three decimals.
fn assert_percent(ratio: f64, printed: &Value) {
    assert!((ratio * 100.0 - number(printed)).abs() <= 0.0005, "{ratio} is not {printed} %");
}

fn criterion(goal: &Value) -> Criterion {
    Criterion {
        loss_ratio: number(&goal["loss_ratio"]),
        exceed_ratio: number(&goal["exceed_ratio"]),
        trial_s: number(&goal["final_trial_s"]),
        duration_sum_s: number(&goal["duration_sum_s"]),
    }
}

/// Searches a target that carries exactly so many packets per second.
fn search(mut search: Search, capacity_pps: f64) -> Search {
    while let Next::Trial { load_pps, duration_s } = search.next_trial() {
        let sent = (load_pps * duration_s) as u64;
        let carried = (capacity_pps * duration_s) as u64;
        search.record(TrialResult::offered(sent, sent.min(carried), duration_s)).unwrap();
    }
    search
}

/// Loads lie on a grid that is computed in another order than the library's, so the last of 16 digits may differ.
fn assert_same_digits(ours: f64, published: f64) {
    assert!((ours / published - 1.0).abs() < 1e-13, "{ours} is not {published}");
}

#[test]
fn the_reference_librarys_example_comes_out() {
    let data = &data()["deterministic_system"];
    let field = |name: &str| number(&data[name]);
    for (exceed_ratio, trials) in
        [(field("exceed_ratio"), field("trials")), (0.5, field("trials_at_exceed_ratio_0.5"))]
    {
        let goal = |name: &str, loss_ratio| Goal {
            name: name.into(),
            loss_ratio,
            exceed_ratio,
            width: field("relative_width"),
            initial_trial_s: field("initial_trial_s"),
            final_trial_s: field("final_trial_s"),
            duration_sum_s: field("duration_sum_s"),
        };
        let goals = vec![goal("NDR", field("ndr_loss_ratio")), goal("PDR", field("pdr_loss_ratio"))];
        let limits = Limits {
            min_pps: field("min_load"),
            max_pps: field("max_load"),
            time_limit_s: 1200.0,
            warm_up_s: None,
        };
        let search = search(Search::new(goals, limits).unwrap(), field("capacity_fps"));
        assert_eq!(search.trials().len() as f64, trials, "trials at exceed ratio {exceed_ratio}");
        for (result, name) in search.results().iter().zip(["ndr", "pdr"]) {
            assert_eq!(result.ending, Ending::Regular);
            assert_same_digits(result.conditional_throughput_pps.unwrap(), field(&format!("{name}_fps")));
            let bounds: Vec<f64> =
                data[format!("{name}_bounds")].as_array().unwrap().iter().map(number).collect();
            // Published to four decimals.
            assert!((result.lower.unwrap().load_pps - bounds[0]).abs() < 1e-4, "{result:?}");
            assert!((result.upper.unwrap().load_pps - bounds[1]).abs() < 1e-4, "{result:?}");
        }
    }
}
