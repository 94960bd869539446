//! The documentation of the language names what there is, and its example works.

#![allow(clippy::unwrap_used)]

mod common;

use common::parse;
use template::WarningKind;

fn language() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/language.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_example_is_a_program() {
    let text = language();
    let example = text.split("```").nth(1).unwrap();
    let compiled = parse(example).unwrap_or_else(|error| panic!("{error}"));
    let ports: Vec<u8> = common::packets(example, 9).iter().map(|bytes| bytes[37]).collect();
    assert_eq!(ports, [9, 10, 11, 12, 13, 14, 15, 16, 9]);
    let kinds: Vec<WarningKind> = compiled.warnings.iter().map(|warning| warning.kind).collect();
    assert_eq!(kinds, [WarningKind::StaleChecksum]); // what trafgen would do with the random payload
}

/// Every field that an error message proposes is documented, with its header.
#[test]
fn every_field_is_documented() {
    let text = language();
    for header in [
        "eth", "pause", "vlan", "mpls", "arp", "ipv4", "ipv6", "icmp4", "icmp6", "udp", "tcp", "gre",
        "vxlan", "dns",
    ] {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{header}`"))).unwrap();
        let error = parse(format!("{{ {header}(nosuch=1) }}")).unwrap_err();
        let expected = error.expected.unwrap();
        for field in expected.trim_start_matches("one of ").split(", ") {
            let known = row.contains(&format!("`{field}`")) || (field.ends_with("count") && header == "dns");
            assert!(known, "{header} {field}");
        }
    }
}
