//! Where trafgen is wrong, the packet is right and a warning names the difference.
//!
//! The right values are in the corpus (`trap-*.hex`); here are the warnings, and what is refused.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Texts, corpus, packets, parse, sum};
use template::{ParseOptions, Program, WarningKind};

#[test]
fn each_difference_is_named_once() {
    use WarningKind::*;
    let cases = [
        ("{ c16(1+2*3), c16(1+2*3) }", Precedence),
        ("{ dinc(0,9), dinc(0,9) }", DincStart),
        ("{ ddec(0,9), ddec(1,9) }", DdecRange),
        ("{ ipv4(ttl=1, sa=drnd(), da=drnd()) }", RandomTopBit),
        ("{ eth(da=dinc(), sa=dinc()) }", WideCounter),
        ("{ eth(da=drnd(1,5)) }", WideRandom),
        ("{ 1, 2, csumip(0,1) }", StaticChecksum),
        ("{ drnd(), 1, 1, 2, csumip(0,2) }", OddChecksum),
        ("{ ipv4(ttl=1), icmp4(), 1 }", OddChecksum),
        ("{ ipv4(ttl=1), udp(), drnd(4) }", StaleChecksum),
        ("{ eth(), ipv6(hl=1), icmp6(code=dinc()) }", StaleChecksum),
        (r#"{ "ab\x41" }"#, MixedEscapes),
        (r#"{ "\x00" }"#, NulInString),
        ("cpu(0): { 1 }", CpuLate),
        ("{ ipv4(ttl=1), dns(qry()) }", DnsName),
        (r#"{ ipv4(ttl=1), dns(qry(name="a"), ans(name="a")) }"#, DnsRecords),
        ("{ eth(), ipv6(hl=1), ipv4(ttl=1) }", InsideIpv6),
        ("{ ipv6(hl=1) }", Ipv6Ethernet),
        ("{ eth(), 1, ipv4(ttl=1) }", BytesBetweenHeaders),
        ("{ ipv4() }", TtlZero),
        ("# define x\n{ 1 }", CommentDirective),
        ("{ ipv4(ihl=6, ttl=1), fill(1, 4) }", Ipv4Options),
    ];
    for (text, wanted) in cases {
        let compiled = parse(text).unwrap_or_else(|error| panic!("{error}"));
        let found: Vec<WarningKind> = compiled.warnings.iter().map(|warning| warning.kind).collect();
        assert_eq!(found, [wanted], "{text}");
        assert!(compiled.warnings[0].to_string().contains('^'), "{text}");
    }
}

#[test]
fn what_trafgen_does_right_gives_no_warning_about_it() {
    for case in corpus().iter().filter(|case| case.same_as_trafgen) {
        let compiled = parse(&case.text).unwrap();
        let known = [WarningKind::TtlZero, WarningKind::MixedEscapes];
        let other = compiled.warnings.iter().find(|warning| !known.contains(&warning.kind));
        assert!(other.is_none(), "{}: {}", case.name, other.unwrap());
    }
}

/// The text, the message, line and column.
const REFUSED: &[(&str, &str, usize, usize)] = &[
    ("{ c8(1/0) }", "division by zero", 1, 7),
    ("{ c8(1%(2-2)) }", "division by zero", 1, 7),
    ("{ dinc(10,9) }", "the range from 10 to 9 is empty", 1, 8),
    ("{ udp(sp=dinc(10,9)) }", "the range from 10 to 9 is empty", 1, 15),
    ("{ dinc(0,300) }", "300 does not fit into the range's end; trafgen would take 0x2c", 1, 10),
    ("{ 0xfff }", "4095 does not fit into a byte; trafgen would take 0xff", 1, 3),
    ("{ c8(256) }", "256 does not fit into 8 bits", 1, 6),
    ("{ udp(dp=70000) }", "70000 does not fit into dport, which has 16 bits; trafgen would take 4464", 1, 10),
    ("{\n  vlan(id=5000)\n}", "5000 does not fit into id, which has 12 bits; trafgen would take 904", 2, 11),
    ("{ udp(sp=dinc(0, 65536)) }", "65536 does not fit into sport, which has 16 bits", 1, 18),
    ("{ c64(1 << 64) }", "this shift is not by 0 to 63 bits", 1, 9),
    ("{ c64(0xffffffffffffffff * 2) }", "the result has more than 64 bits", 1, 26),
    ("{ 1", "this packet has no end", 1, 1),
    ("{ }", "the packet is empty", 1, 1),
    ("", "there is no packet", 1, 1),
    ("{ \"abc }", "this string has no end", 1, 3),
    ("{ /* }", "this comment has no end", 1, 3),
    ("{ 08 }", "`08` is no number, function or header", 1, 3),
    ("{ udp }", "`udp` needs brackets", 1, 3),
    ("{ fill(1) }", "`fill` has 1 arguments", 1, 3),
    ("{ csumip(0, 50) }", "the checksum covers bytes that are not in the packet of 2 bytes", 1, 3),
    ("{ ipv4(), icmp6() }", "icmp6() cannot follow ipv4()", 1, 11),
    ("{ udp(), tcp() }", "tcp() cannot follow udp()", 1, 10),
    ("{ eth(), 1, vlan() }", "vlan() must directly follow the header that it is a part of", 1, 13),
    ("{ ipv4(sa=::1) }", "sa cannot hold this", 1, 11),
    ("{ ipv4(sa[4]=dinc()) }", "sa has 4 bytes, numbered from 0", 1, 11),
    ("{ ipv4(sa[1]=5) }", "a part of a field can only have a function", 1, 11),
    ("#include \"missing\"\n{ 1 }", "cannot include \"missing\": inclusions are not possible here", 1, 1),
    ("#if 1\n{ 1 }", "this condition has no end", 1, 1),
    ("#endif\n{ 1 }", "no condition is open here", 1, 1),
    ("#error not yet\n{ 1 }", "#error not yet", 1, 1),
    ("#if 1/0\n#endif\n{ 1 }", "division by zero", 1, 6),
    ("#define F(a) a\n{ F(1, 2) }", "too many arguments: 1 are taken", 2, 6),
    ("#define F(a) a\n{ F(1", "the arguments have no end", 2, 3),
    ("#define F(..., a) a\n{ 1 }", "these are no parameters", 1, 11),
    ("#define F(a) ... a\n{ 1 }", "`...` can only be the last parameter", 1, 14),
    ("#define BAD 300\n\n{ 1,\n  BAD }", "300 does not fit into a byte; trafgen would take 0x2c", 4, 3),
    ("{ dns(qry(name=\"a..b\")) }", "a part of the name has 0 letters: 1 to 63 are possible", 1, 16),
    ("size(45): { udp() }", "the frame has 46 bytes with its FCS, and cannot be one of 45", 1, 1),
    ("{ 1 } size(64-70000): { 1 }", "with these sizes there are 69937 packets, and 65536 are possible", 1, 7),
    ("size(70000): { 1 }", "the packet has more than 65549 bytes here", 1, 1),
    ("weight(0): { 1 }", "this is no weight", 1, 1),
    ("weight(3-4): { 1 }", "this is no weight", 1, 1),
    ("weight(3): weight(4): { 1 }", "this stands before the packet twice", 1, 12),
    (
        "weight(65536): { 1 } { 2 }",
        "the weights are exact after 65537 packets only, and 65536 are possible",
        1,
        1,
    ),
    ("{ udp(sp=dinc(1, 2, 1, 0)) }", "this is no number of packets", 1, 24),
    ("{ dinc(1, 2, 1, 1, 0-1) }", "this is no number of packets", 1, 20),
    ("{ udp(sp=dinc(1, 2, 1, 1, 1, 1)) }", "too many arguments", 1, 10),
    ("size(64-10): { udp() }", "this range of sizes is reversed", 1, 1),
    ("{ 1 }\n#define\n", "the definition has no name", 2, 1),
    ("{ ipv4(sa=1.2.3.256) }", "`1.2.3.256` is no IPv4 address", 1, 11),
    ("{ ipv4(sa=1.2.3) }", "`1.2.3` is no IPv4 address", 1, 11),
    ("{ eth(da=2:0:0:0:1) }", "`2:0:0:0:1` is no MAC address", 1, 10),
    ("{ ipv6(sa=2001::db8::1) }", "`2001::db8::1` is no IPv6 address", 1, 11),
    ("#define FAR 1.2.3\n{ ipv4(sa=FAR) }", "`1.2.3` is no IPv4 address", 2, 11),
    ("{ arp(op=answer) }", "`answer` is no value of op", 1, 10),
];

#[test]
fn what_is_wrong_is_refused_at_its_place() {
    for (text, message, line, column) in REFUSED {
        let error = parse(text).err().unwrap_or_else(|| panic!("understood: {text}"));
        let place = error.place.as_ref().map(|place| (place.line, place.column));
        assert_eq!((error.message.as_str(), place), (*message, Some((*line, *column))), "{text}\n{error}");
    }
}

#[test]
fn unknown_names_bring_the_nearest() {
    let cases = [
        ("{ udp(sprt=5) }", "sport"),
        ("{ upd(sp=5) }", "udp"),
        ("{ fil(1, 2) }", "fill"),
        ("{ tcp(sny) }", "syn"),
        ("{ dns(qyr()) }", "qry"),
        ("{ arp(op=replay) }", "reply"),
        ("{ udp(sp=dnic()) }", "dinc"),
        ("{ c16(ETH_P_IPP) }", "ETH_P_IP"),
        ("{ c8(IPPROTO_UPD) }", "IPPROTO_UDP"),
        ("{ eth(type=ETH_P_IPP) }", "ETH_P_IP"),
        ("#define COUNT 3\n{ fill(1, CUONT) }", "COUNT"),
    ];
    for (text, nearest) in cases {
        let error = parse(text).unwrap_err();
        assert_eq!(error.nearest.as_deref(), Some(nearest), "{error}");
    }
}

#[test]
fn errors_in_included_texts_name_them() {
    let texts = Texts(vec![
        ("a.h", "#include \"b.h\"\n#define PORT 9"),
        ("b.h", "\n#define BIG 70000\n"),
        ("c.h", "{ zz }"),
    ]);
    let options = ParseOptions { name: "main".to_owned(), includes: Some(&texts), ..Default::default() };
    let error = Program::parse("#include <c.h>", &options).unwrap_err();
    assert!(error.to_string().starts_with("c.h:1:3: `zz` is no number"), "{error}");
    let error = Program::parse("#include \"a.h\"\n{ udp(sp=PORT, dp=BIG) }", &options).unwrap_err();
    assert!(error.to_string().starts_with("main:2:19: 70000 does not fit"), "{error}");
    let error = Program::parse("#include \"d.h\"", &options).unwrap_err();
    assert_eq!(error.message, "cannot include \"d.h\": there is no such file");
    let endless = Texts(vec![("e.h", "#include \"e.h\"\n")]);
    let options = ParseOptions { includes: Some(&endless), ..Default::default() };
    let error = Program::parse("#include \"e.h\"", &options).unwrap_err();
    assert!(error.message.contains("nested more than 32 deep"), "{error}");
}

#[test]
fn definitions_of_the_command_line_count() {
    let options = |definitions: &[&str]| ParseOptions {
        definitions: definitions.iter().map(|text| (*text).to_owned()).collect(),
        ..Default::default()
    };
    let bytes = |options: &ParseOptions<'_>| {
        let compiled = Program::parse("#ifdef ON\n{ ON, VALUE }\n#else\n{ 0 }\n#endif", options).unwrap();
        compiled.plan.emitter(0, 1, 0).unwrap().to_vec(0)
    };
    assert_eq!(bytes(&options(&["ON", "VALUE=7"])), [1, 7]);
    assert_eq!(bytes(&options(&[])), [0]);
    assert_eq!(bytes(&options(&["ON=TWICE(4)", "VALUE", "TWICE(X)=(X+X)"])), [8, 1]);
    for wrong in ["3=4", "", "=3", "A B=3", "A-B", "A(", "A=1\nB=2"] {
        let error = Program::parse("{ 1 }", &options(&[wrong])).err();
        assert!(error.is_some_and(|error| error.place.is_none()), "{wrong:?}");
    }
}

#[test]
fn a_definition_may_take_any_number_of_arguments() {
    let first = |text: &str| packets(text, 1).remove(0);
    assert_eq!(first("#define F(...) { __VA_ARGS__ }\nF(1, 2, 3)"), [1, 2, 3]);
    assert_eq!(first("#define F(x, ...) x, __VA_ARGS__\n{ F(7, fill(1, 2), 3) }"), [7, 1, 1, 3]);
    assert_eq!(first("#define F(x, ...) x, __VA_ARGS__\n{ F(7) }"), [7]);
    let port = first("#define U(...) udp(__VA_ARGS__)\n{ U(sp=1, dp=2) }");
    assert_eq!(port[34..38], [0, 1, 0, 2]);
}

#[test]
fn addresses_come_from_the_device() {
    let device = template::Device {
        mac: Some([2, 0, 0, 0, 0, 9]),
        ipv4: Some([10, 0, 0, 9].into()),
        ipv6: Some("fd00::9".parse().unwrap()),
    };
    let options = ParseOptions { device, ..Default::default() };
    let bytes = |text: &str| {
        let compiled = Program::parse(text, &options).unwrap();
        compiled.plan.emitter(0, 1, 0).unwrap().to_vec(0)
    };
    let arp = bytes("{ arp() }");
    assert_eq!((&arp[6..12], &arp[22..28]), (&[2, 0, 0, 0, 0, 9][..], &[2, 0, 0, 0, 0, 9][..]));
    assert_eq!((&arp[28..32], &arp[38..42]), (&[10, 0, 0, 9][..], &[10, 0, 0, 9][..]));
    assert_eq!(bytes("{ ipv4() }")[26..30], [10, 0, 0, 9]);
    assert_eq!(bytes("{ ipv6() }")[22..38], device.ipv6.unwrap().octets());
    assert_eq!(bytes("{ eth(sa=02:00:00:00:00:01) }")[6..12], [2, 0, 0, 0, 0, 1]);
}

/// The receiver's test for thousands of packets with everything varying, odd lengths included.
#[test]
fn every_checksum_of_every_packet_is_right() {
    let layers =
        [("udp(sp=drnd(), dp=dinc())", 17), ("tcp(seq=drnd(), ack, win=dinc(5,500,7), urgptr=drnd(1,9))", 6)];
    for (layer, protocol) in layers {
        for payload in ["", "drnd(1)", "drnd(2)", "1, dinc(0,255)", "drnd(5), 7", "c16(5), drnd(18), \"abc\""]
        {
            let v4 = format!(
                "{{ ipv4(ttl=64, id=drnd(), sa=drnd(), da=1.2.3.4, da[1:2]=dinc()), {layer}, {payload} }}"
            );
            let v6 = format!("{{ ipv6(hl=drnd(), sa=drnd(), da=dinc()), {layer}, {payload} }}");
            for bytes in packets(&v4, 2000) {
                assert_eq!(sum(&[&bytes[14..34]]), 0xffff, "{v4}");
                check(&bytes, 26..34, 34, protocol, &v4);
            }
            for bytes in packets(&v6, 2000) {
                check(&bytes, 22..54, 54, protocol, &v6);
            }
        }
    }
    for bytes in packets("{ ipv6(hl=1, sa=drnd()), icmp6(type=drnd(), id=drnd()), drnd(7) }", 2000) {
        check(&bytes, 22..54, 54, 58, "icmp6");
    }
    for bytes in packets("{ ipv4(ttl=drnd()), icmp4(type=drnd(), seq=dinc()), drnd(7) }", 2000) {
        assert_eq!((sum(&[&bytes[14..34]]), sum(&[&bytes[34..]])), (0xffff, 0xffff));
    }
}

fn check(bytes: &[u8], addresses: std::ops::Range<usize>, start: usize, protocol: u8, text: &str) {
    let len = ((bytes.len() - start) as u32).to_be_bytes();
    let found = sum(&[&bytes[addresses], &len, &[0, protocol], &bytes[start..]]);
    assert_eq!(found, 0xffff, "{text}");
    assert!(protocol != 17 || bytes[start + 6..start + 8] != [0, 0], "{text}");
}
