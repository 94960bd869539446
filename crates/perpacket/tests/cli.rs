//! What a person sees without any privilege: help, calculations, and what is refused.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn perpacket(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_perpacket"))
        .args(args)
        .env("PERPACKET_STORE", env!("CARGO_TARGET_TMPDIR"))
        .env_remove("COLUMNS")
        .output()
        .unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = perpacket(args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The message of a command that cannot be done: exit code 2, one message, nothing on standard output.
fn refused(args: &[&str]) -> String {
    let output = perpacket(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?} printed {}", String::from_utf8_lossy(&output.stdout));
    stderr
}

#[test]
fn help_texts() {
    for command in
        ["path", "ab", "gen", "flows", "search", "datapath", "alloc", "run", "sink", "wire", "doctor"]
    {
        insta::assert_snapshot!(format!("help-{command}"), stdout(&[command, "--help"]));
    }
    insta::assert_snapshot!("help", stdout(&["--help"]));
}

#[test]
fn the_calculator_gives_the_published_differences() {
    for (before, after, saved) in [
        ("977414", "1025150", "47.64 ns"),
        ("974404", "1032930", "58.15 ns"),
        ("911657", "937416", "30.14 ns"),
        ("906229", "930761", "29.08 ns"),
        ("2785579", "2892050", "13.22 ns"),
        ("2559718", "2624484", "9.64 ns"),
        ("2544577", "2624492", "11.97 ns"),
        ("2800896", "2885820", "10.51 ns"),
        ("2801058", "2885820", "10.49 ns"),
    ] {
        let text = stdout(&["wire", "diff", before, after]);
        assert!(text.contains(saved), "{before} {after}: {text}");
    }
    let text = stdout(&["wire", "10G", "64", "272"]);
    assert!(text.contains("14880952 pps, 67.20 ns per packet") && text.contains("4280822 pps"), "{text}");
}

#[test]
fn bad_input_is_named_with_what_to_do() {
    for (args, expected) in [
        (&["path", "raw-dorp"][..], "`raw-drop` is near"),
        (&["path", "raw-drop", "--frame", "63"], "64 to 1518 bytes"),
        (&["path", "raw-drop", "--frame", "9000"], "64 to 1518 bytes"),
        (&["path", "raw-drop", "--frame", "64,9000"], "frame size 9000"),
        (&["path", "raw-drop", "--frame", "63,64"], "frame size 63"),
        (&["path", "raw-drop", "--slice", "0"], "use --slice 5000"),
        (&["path", "raw-drop", "--flows", "0"], "at least one flow"),
        (&["search", "updp"], "`udp` is near"),
        (&["search", "floor"], "cannot lose any"),
        (&["search", "udp", "--goal", "nrd"], "`ndr` is near"),
        (&["search", "udp", "--goal", "x:200%"], "below 100%"),
        (&["search", "udp", "--goal", "ndr,ndr"], "two goals are called NDR"),
        (&["search", "udp", "--goal", "rfc2544"], "use a greater --time"),
        (&["search", "devices"], "the path devices takes --to DEVICE"),
        (&["search", "udp", "--rcvbuf", "1MiB"], "on the path flows only"),
        (&["search", "udp", "--min", "1Gbit"], "a rate in packets is needed"),
        (&["search", "udp", "--min", "2Mpps", "--max", "1Mpps"], "must be above the least"),
        (&["search", "udp", "--threads", "2"], "one thread sends"),
        (&["search", "udp", "--sum", "100ms"], "at least one final trial"),
        (&["search", "datapath:udp", "--ports", "af-xpd"], "`af-xdp` is near"),
        (&["path", "raw-drop", "--flows", "60537"], "at most 60536"),
        (&["ab", "raw-drop", "--vary", "flows=1,70000"], "at most 60536"),
        (&["path", "raw-drop", "--seed", "9223372036854775808"], "at most 9223372036854775807"),
        (&["ab", "raw-drop", "--margin", "0"], "must be above 0 and below 100 %"),
        (&["doctor", "--device", "lo"], "it is the loopback"),
        (&["path", "raw-drop", "--batch", "0"], "1 to 256"),
        (&["path", "raw-drop", "--rps", "zz"], "CPU mask"),
        (&["path", "raw-drop", "--backend", "af-xpd"], "`af-xdp` is near"),
        (&["path", "raw-drop", "--backend", "inject", "--gro", "on"], "use --backend mmsg"),
        (&["path", "raw-drop", "--gro", "perhaps"], "use on or off"),
        (&["path", "raw-drop", "--spin", "9999999"], "spin = 9999999"),
        (&["path", "raw-drop", "--json", "/nonexistent/x.json"], "open /nonexistent/x.json"),
        (&["path", "raw-drop", "--slice", "63"], "at least 64"),
        (&["ab", "raw-drop", "--vary", "frame=64,x"], "frame = x"),
        (&["ab", "raw-drop", "--reload", "1"], "at least 10 pairs"),
        (&["path", "raw-drop", "--clock", "sun"], "thread or machine"),
        (&["path", "raw-drop", "--cpu", "99999"], "CPU 99999"),
        (&["path", "xdp-drop", "--backend", "inject"], "does not lead into xdp-drop"),
        (&["path", "xdp-drop", "--rules", "5"], "do not pass the packet filter"),
        (&["ab", "raw-drop", "--vary", "ruels=0,5"], "`rules` is near"),
        (&["ab", "raw-drop", "--vary", "rules=5"], "two values"),
        (&["ab", "raw-drop", "--vary", "rps=0,0x1"], "use --clock machine"),
        (&["path", "raw-drop", "--threads", "0"], "1 to 256 threads"),
        (&["path", "raw-drop", "--threads", "256"], "a CPU of its own"),
        (&["path", "udp", "--threads", "2"], "use raw-drop"),
        (&["path", "raw-drop", "--qdisc", "fq codel"], "the name of a kind"),
        (&["path", "raw-drop", "--qdisc", "netem"], "use --clock machine"),
        (&["path", "xdp-drop", "--qdisc", "pfifo", "--backend", "xdp-live"], "use --backend mmsg"),
        (&["path", "raw-drop", "--gso", "on", "--backend", "tx-ring"], "use --backend udp"),
        (&["path", "raw-drop", "--gso", "perhaps"], "use on or off"),
        (&["path", "datapath:drop", "--gso", "on"], "use raw-drop, forward or udp"),
        (&["path", "datapath:dorp"], "`datapath:drop` is near"),
        (&["path", "datapath:drop", "--frame", "9217"], "datapath paths take 64 to 9216 bytes"),
        (&["path", "datapath:drop", "raw-drop", "--frame", "9000"], "the lab's devices take 64 to 1518"),
        (&["path", "datapath:drop", "--alloc", "any-contxt"], "`any-context` is near"),
        (&["path", "datapath:drop", "--rx", "copy-break:0"], "from 1 to 65535"),
        (&["path", "datapath:drop", "--lock", "none"], "use datapath:dummy or datapath:forward"),
        (&["path", "datapath:drop", "--queues", "2"], "use datapath:dummy or datapath:forward"),
        (&["path", "datapath:dummy", "--prefixes", "100"], "use datapath:forward"),
        (&["path", "datapath:dummy", "--queues", "0"], "1 to 256 sending queues"),
        (&["path", "datapath:forward", "--prefixes", "4000001"], "1 to 4000000 prefixes"),
        (&["path", "datapath:drop", "--rules", "5"], "use raw-drop, forward or udp"),
        (&["path", "datapath:drop", "--gro", "on"], "use raw-drop, forward or udp"),
        (&["path", "datapath:drop", "--rps", "3"], "use raw-drop, forward or udp"),
        (&["path", "datapath:drop", "--spin", "3"], "use raw-drop, forward or udp"),
        (&["path", "datapath:drop", "--qdisc", "fq"], "see --lock"),
        (&["path", "datapath:drop", "--backend", "inject"], "leave --backend out"),
        (&["path", "datapath:drop", "--batch", "65"], "use --batch 64"),
        (&["path", "datapath:drop", "--alloc", "system", "--rx", "page-pool"], "use --rx copy"),
        (&["ab", "datapath:drop", "--vary", "alloc=poll,system", "--rx", "fragment"], "use --rx copy"),
        (&["ab", "datapath:drop", "--vary", "lock=device,queue"], "use datapath:dummy or datapath:forward"),
        (&["ab", "datapath:drop", "--vary", "rules=0,5"], "use raw-drop, forward or udp"),
        (&["ab", "datapath:drop", "--vary", "aloc=poll,system"], "`alloc` is near"),
        (&["ab", "datapath:drop", "--a", "true", "--b", "true"], "no network namespace"),
        (&["ab", "datapath:drop", "--vary", "frame=64,128", "--frame", "64,272"], "leave the 2 sizes"),
        (&["path", "raw-drop", "--alloc", "system"], "use datapath:drop, datapath:forward or datapath:udp"),
        (&["path", "raw-drop", "--queues", "2"], "use datapath:dummy or datapath:forward"),
        (&["ab", "raw-drop", "--vary", "rx=copy,page-pool"], "use datapath:drop"),
        (&["run", "/nonexistent.toml"], "read the scenario /nonexistent.toml"),
        (&["sink"], "perpacket sink --udp ADDR:PORT"),
        (&["sink", "nowhere0"], "no device is called `nowhere0`"),
        (&["sink", "lo", "--by", "pcap"], "xdp, packet-ring, af-xdp and udp"),
        (&["sink", "lo", "--by", "xdp", "--mark"], "does not see marks"),
        (&["sink", "lo", "--by", "udp"], "use --udp ADDR:PORT"),
        (&["sink", "lo", "--queue", "0"], "use --by af-xdp"),
        (&["sink", "--udp", "203.0.113.7:9"], "bind socket on UDP 203.0.113.7:9"),
        (&["sink", "--udp", "127.0.0.1:0", "--sent", "5"], "--mark"),
        (&["wire", "10G"], "a frame size is missing"),
        (&["wire", "10G", "63"], "64 bytes at least"),
        (&["wire", "diff", "1"], "two rates"),
    ] {
        let message = refused(args);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn doctor_says_what_the_host_can_do() {
    let text = stdout(&["doctor"]);
    for word in ["kernel", "inject", "af-xdp", "counter instructions", "raw-drop"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&stdout(&["doctor", "--json", "-"])).unwrap();
    assert!(json["environment"]["kernel_release"].is_string(), "{json}");
}
