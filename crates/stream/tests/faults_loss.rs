//! Faults that users of other tools reported of loss and sequence, each with the right value.
#![allow(clippy::unwrap_used)]

mod faults_support;
mod iperf3_support;

use std::net::UdpSocket;
use std::time::Duration;

use faults_support::{Pass, Relay, Toward, datagrams, gentle, received};
use iperf3_support::{Ours, limits};
use serde_json::Value;
use stream::datagrams::{Fate, Tracker, Unwrap};
use stream::engine::End;
use stream::iperf3::client::{self, Options};
use stream::iperf3::json;
use stream::outcome::Exchanged;
use stream::plan::{Direction, Plan, Until};

/// Makes a test of iperf3's protocol through a relay; what both ends counted, what the client prints, and the relay.
fn through(
    plan: &Plan,
    policy: impl Fn(Toward, Option<u64>) -> Pass + Send + Sync + 'static,
) -> (Exchanged, Value, Relay) {
    let ours = Ours::with_limits(limits());
    let relay = Relay::start(ours.address, policy);
    let finished = client::run_whole(relay.address, plan, &Options::default()).unwrap();
    let test = json::Test {
        end: End::Client,
        plan,
        facts: &finished.facts,
        exchanged: &finished.exchanged,
        server_output: None,
    };
    let document = json::document(&test);
    (finished.exchanged, document, relay)
}

/// Does something to each seventh number, neither the first nor the last of 150.
fn sometimes(what: Pass) -> impl Fn(Toward, Option<u64>) -> Pass + Send + Sync + 'static {
    move |_, number| match number {
        Some(number) if number % 7 == 3 && number < 140 => what,
        _ => Pass::On,
    }
}

/// How many of 150 are such.
const SEVENTHS: u64 = 20;

/// `omit` with UDP gives a negative loss (iperf3 #412): what was lost before counting began is in no figure, and neither is
/// what was sent before and comes late.
#[test]
fn loss_after_an_omit_period_is_that_after_it() {
    let mut tracker = Tracker::starting_at(1);
    (1..=100).filter(|number| number % 10 != 0).for_each(|number| {
        tracker.record(number, None);
    });
    // 100 was not received: counting begins after 99, and 100 is lost in it.
    tracker.end_omit();
    assert_eq!(tracker.record(50, None), Fate::Omitted);
    (101..=200).filter(|number| *number != 150).for_each(|number| {
        tracker.record(number, None);
    });
    let total = tracker.total(Some(201));
    assert_eq!((total.received, total.lost, total.tail_lost), (99, 2, Some(0)));
    assert_eq!((total.duplicate, tracker.omitted()), (0, 1));
}

/// The same through a whole test: nothing is lost after counting began, much before.
#[test]
fn what_a_relay_dropped_while_omitting_is_no_loss() {
    let omit = Duration::from_secs(1);
    let plan = Plan { omit, ..gentle(Direction::ToServer, 200) };
    // Of the first tens only, which are long over when counting begins.
    let (both, document, relay) = through(&plan, |_, number| match number {
        Some(number) if number % 2 == 0 && number < 50 => Pass::Drop,
        _ => Pass::On,
    });
    assert_eq!(relay.dropped(Toward::Server), 24);
    assert_eq!(datagrams(&both.server, 0).lost, 0);
    assert_eq!(document["end"]["sum"]["lost_packets"], 0);
}

/// Reverse UDP tells of a negative loss (iperf3 #914): copies and other orders on the way take nothing from what was lost.
#[test]
fn copies_and_another_order_in_reverse_make_no_loss_negative() {
    let plan = Plan { until: Until::Time(Duration::from_millis(150)), ..gentle(Direction::ToClient, 0) };
    let (both, document, relay) = through(&plan, |toward, number| match (toward, number.unwrap_or(0) % 7) {
        (Toward::Server, _) | (_, 0) => Pass::On,
        (_, 1) => Pass::Behind(2),
        (_, 3) if number.is_some_and(|number| number < 15) => Pass::Drop,
        (_, 2) => Pass::Twice,
        _ => Pass::On,
    });
    let told = datagrams(&both.client, 0);
    let went = both.server.flows[0].sent.unwrap().messages;
    assert_eq!((told.lost, told.tail_lost, told.received), (2, Some(0), went - 2));
    assert_eq!(told.duplicate, relay.copies(Toward::Client));
    assert!(told.duplicate > 2);
    assert_eq!(document["end"]["sum"]["lost_packets"], 2);
}

/// Both directions at once lose negative numbers of datagrams, or none (iperf3 #1866): each direction has its own.
#[test]
fn each_direction_of_both_has_its_own_loss() {
    let plan = gentle(Direction::Both, 120);
    let (both, _, relay) = through(&plan, |toward, number| match (toward, number) {
        (Toward::Server, Some(number)) if number % 10 == 5 => Pass::Drop,
        (Toward::Client, Some(number)) if number % 20 == 7 => Pass::Drop,
        _ => Pass::On,
    });
    assert_eq!((relay.dropped(Toward::Server), relay.dropped(Toward::Client)), (12, 6));
    let [server, client] =
        [&both.server, &both.client].map(|side| side.flows.iter().find_map(|flow| flow.datagrams).unwrap());
    assert_eq!((server.lost, server.received), (12, 108));
    assert_eq!((client.lost, client.received), (6, 114));
}

/// The counter of 32 bits wraps after 2^32 datagrams and loss is nonsense from there on (iperf3 #1892).
#[test]
fn loss_goes_on_where_a_counter_of_32_bits_wraps() {
    let begin = (1_u64 << 32) - 100;
    let mut unwrap = Unwrap::new(32, begin);
    let mut tracker = Tracker::starting_at(begin);
    // Two are lost on each side, one comes late from the other side of it.
    let lost = [(1 << 32) - 50, (1 << 32) - 1, 1 << 32, (1_u64 << 32) + 9];
    let sent = (begin..begin + 200).filter(|number| !lost.contains(number));
    for number in sent.chain([(1 << 32) - 1]) {
        tracker.record(unwrap.unwrap(number & 0xffff_ffff), None);
    }
    let total = tracker.total(Some(begin + 200));
    assert_eq!((total.received, total.lost, total.reordered, total.tail_lost), (197, 3, 1, Some(0)));
}

/// A run of 24 h tells of 0 lost of 2147483647 (iperf3 #1534): a count beyond 31 and 32 bits is a count, also in JSON.
#[test]
fn a_day_of_datagrams_is_counted_and_printed() {
    // 100,000 in a second for a day; a thousandth was lost in one piece.
    let (sent, lost) = (86_400 * 100_000_u64, 8_640_000);
    let mut tracker = Tracker::starting_at(1);
    tracker.record(1, None);
    tracker.record(sent, None);
    assert_eq!(tracker.total(Some(sent + 1)).lost, sent - 2);
    let plan = gentle(Direction::ToServer, 1);
    let (mut both, _, _relay) = through(&plan, |_, _| Pass::On);
    both.client.flows[0].sent.as_mut().unwrap().messages = sent;
    let told = both.server.flows[0].datagrams.as_mut().unwrap();
    (told.received, told.lost) = (sent - lost, lost);
    let test = json::Test {
        end: End::Client,
        plan: &plan,
        facts: &Default::default(),
        exchanged: &both,
        server_output: None,
    };
    let sum = &json::document(&test)["end"]["sum"];
    assert_eq!((sum["packets"].as_u64(), sum["lost_packets"].as_u64()), (Some(sent), Some(lost)));
    assert!((sum["lost_percent"].as_f64().unwrap() - 0.1).abs() < 1e-9);
}

/// Loss of 179 % (iperf3 #1489): the share that is printed is lost through sent, whatever else happened.
#[test]
fn the_share_that_was_lost_has_one_denominator() {
    let (_, document, relay) = through(&gentle(Direction::ToServer, 150), |_, number| match number {
        Some(number) if number < 140 && number % 3 == 0 => Pass::Drop,
        Some(number) if number % 5 == 0 => Pass::Behind(3),
        Some(number) if number % 7 == 0 => Pass::Twice,
        _ => Pass::On,
    });
    let expected = relay.dropped(Toward::Server) as f64 * 100.0 / 150.0;
    for sum in ["sum", "sum_received"] {
        let percent = document["end"][sum]["lost_percent"].as_f64().unwrap();
        assert!((percent - expected).abs() < 1e-9, "{sum}: {percent} instead of {expected}");
    }
}

/// 364,936 lost of a test that sent 126 kB (iperf3 #716): datagrams of somebody else, or of a test before, are not of this one.
#[test]
fn the_datagrams_of_others_are_no_loss() {
    let ours = Ours::with_limits(limits());
    let to = ours.address;
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let relay = Relay::start(to, move |toward, number| {
        if toward == Toward::Server && number.is_some() {
            let mut old = [0; 100];
            old[8..12].copy_from_slice(&364_936_u32.to_be_bytes());
            stranger.send_to(&old, to).unwrap();
        }
        Pass::On
    });
    let both = client::run(relay.address, &gentle(Direction::ToServer, 100), &Options::default()).unwrap();
    let told = datagrams(&both.server, 0);
    assert_eq!((told.received, told.lost, received(&both.server)), (100, 0, 10_000));
}

/// Another order is counted as loss (iperf3 #457).
#[test]
fn another_order_is_no_loss() {
    let (both, document, _relay) = through(&gentle(Direction::ToServer, 150), sometimes(Pass::Behind(1)));
    let told = datagrams(&both.server, 0);
    assert_eq!((told.received, told.lost, told.reordered), (150, 0, SEVENTHS));
    assert_eq!(document["end"]["sum"]["lost_packets"], 0);
}

/// The same for what is overtaken by many (iperf3 #1142): by all that a window of a few would remember.
#[test]
fn what_is_overtaken_by_many_is_no_loss() {
    let (both, _, _relay) = through(&gentle(Direction::ToServer, 150), |_, number| match number {
        Some(number) if number % 50 == 3 => Pass::Behind(40),
        _ => Pass::On,
    });
    let told = datagrams(&both.server, 0);
    assert_eq!((told.received, told.lost, told.reordered), (150, 0, 3));
}

/// An interval has ended when a late one comes (iperf3 #457, in intervals): loss of the interval, not of the whole.
#[test]
fn what_comes_after_its_interval_is_late_and_not_lost_in_all() {
    let mut tracker = Tracker::starting_at(0);
    (0..10).filter(|number| *number != 4).for_each(|number| {
        tracker.record(number, None);
    });
    assert_eq!(tracker.end_interval().lost, 1);
    assert_eq!(tracker.record(4, None), Fate::Late);
    let second = tracker.end_interval();
    assert_eq!((second.lost, second.late, second.received), (0, 1, 1));
    assert_eq!((tracker.total(Some(10)).lost, tracker.total(Some(10)).tail_lost), (0, Some(0)));
}

/// `out_of_order` is always 0 in the client's JSON (iperf3 #469): in both directions it is what the receiver saw.
#[test]
fn another_order_is_in_the_json_of_the_client() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (_, document, _relay) = through(&gentle(direction, 150), sometimes(Pass::Behind(1)));
        assert_eq!(document["end"]["streams"][0]["udp"]["out_of_order"], SEVENTHS, "{direction:?}");
    }
}

/// A lossy test is printed as one without loss (iperf3 3.21, #1984).
#[test]
fn a_lossy_test_is_printed_as_one() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (_, document, relay) = through(&gentle(direction, 150), sometimes(Pass::Drop));
        let toward = if direction == Direction::ToServer { Toward::Server } else { Toward::Client };
        assert_eq!(relay.dropped(toward), SEVENTHS);
        let end = &document["end"];
        assert_eq!((&end["sum"]["lost_packets"], &end["sum"]["packets"]), (&SEVENTHS.into(), &150.into()));
        assert_eq!(end["streams"][0]["udp"]["lost_packets"], SEVENTHS, "{direction:?}");
    }
}

/// What is lost behind the last that came is not counted (iperf3 counts gaps between numbers): it is, apart.
#[test]
fn the_tail_is_lost_too() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (both, document, _relay) = through(&gentle(direction, 100), |_, number| match number {
            Some(number) if number > 90 => Pass::Drop,
            _ => Pass::On,
        });
        let side = if direction == Direction::ToServer { &both.server } else { &both.client };
        let told = datagrams(side, 0);
        assert_eq!((told.received, told.lost, told.tail_lost), (90, 0, Some(10)), "{direction:?}");
        assert_eq!(document["end"]["sum"]["lost_packets"], 10, "{direction:?}");
    }
}
