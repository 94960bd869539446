//! Files made by hand, in every byte order and resolution, and files that were damaged.

#![allow(clippy::unwrap_used)]

use std::io::{self, Read};

use super::*;

/// 2023-11-14T22:13:20.123456789Z
pub(super) const NS: u64 = 1_700_000_000_123_456_789;
const SECOND: u32 = 1_700_000_000;

fn open(file: &[u8]) -> CaptureReader<&[u8]> {
    CaptureReader::open(file).unwrap()
}

/// Everything up to the end or an error.
fn read<R: Read>(reader: &mut CaptureReader<R>) -> (Vec<(Captured, Vec<u8>)>, Option<CaptureError>) {
    let (mut frames, mut frame) = (Vec::new(), Vec::new());
    loop {
        match reader.next_frame(&mut frame) {
            Ok(Some(captured)) => frames.push((captured, frame.clone())),
            Ok(None) => return (frames, None),
            Err(error) => {
                assert_eq!(reader.next_frame(&mut frame).unwrap(), None, "nothing behind an error");
                return (frames, Some(error));
            }
        }
    }
}

pub(super) fn frames(file: &[u8]) -> Vec<(Captured, Vec<u8>)> {
    let (frames, error) = read(&mut open(file));
    assert!(error.is_none(), "{error:?}");
    frames
}

fn flaw(error: Option<CaptureError>) -> (u64, Flaw) {
    match error {
        Some(CaptureError::Flawed { offset, flaw }) => (offset, flaw),
        other => panic!("{other:?}"),
    }
}

/// Makes files in a byte order.
#[derive(Clone, Copy)]
struct Maker(ByteOrder);

const ORDERS: [Maker; 2] = [Maker(ByteOrder::Little), Maker(ByteOrder::Big)];
const LITTLE: Maker = ORDERS[0];

impl Maker {
    fn n16(self, number: u16) -> Vec<u8> {
        if self.0 == ByteOrder::Big { number.to_be_bytes().to_vec() } else { number.to_le_bytes().to_vec() }
    }

    fn n32(self, number: u32) -> Vec<u8> {
        if self.0 == ByteOrder::Big { number.to_be_bytes().to_vec() } else { number.to_le_bytes().to_vec() }
    }

    fn n64(self, number: u64) -> Vec<u8> {
        if self.0 == ByteOrder::Big { number.to_be_bytes().to_vec() } else { number.to_le_bytes().to_vec() }
    }

    fn pcap(self, magic: u32, link_type: u32) -> Vec<u8> {
        [self.n32(magic), self.n16(2), self.n16(4), self.n64(0), self.n32(262_144), self.n32(link_type)]
            .concat()
    }

    fn record(self, second: u32, fraction: u32, original: u32, data: &[u8]) -> Vec<u8> {
        let numbers = [second, fraction, data.len() as u32, original].map(|number| self.n32(number));
        [&numbers.concat()[..], data].concat()
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let padding = body.len().next_multiple_of(4) - body.len();
        let bytes = self.n32((12 + body.len() + padding) as u32);
        [&self.n32(kind)[..], &bytes, body, &[0; 3][..padding], &bytes].concat()
    }

    fn section(self) -> Vec<u8> {
        let body = [self.n32(0x1a2b_3c4d), self.n16(1), self.n16(0), self.n64(u64::MAX)].concat();
        self.block(0x0a0d_0d0a, &body)
    }

    fn option(self, code: u16, value: &[u8]) -> Vec<u8> {
        let padding = value.len().next_multiple_of(4) - value.len();
        [&self.n16(code)[..], &self.n16(value.len() as u16), value, &[0; 3][..padding]].concat()
    }

    fn interface(self, link_type: u16, snap: u32, options: &[u8]) -> Vec<u8> {
        let fields = [self.n16(link_type), self.n16(0), self.n32(snap)].concat();
        self.block(1, &[&fields[..], options].concat())
    }

    fn enhanced(self, interface: u32, ticks: u64, original: u32, data: &[u8]) -> Vec<u8> {
        let numbers = [interface, (ticks >> 32) as u32, ticks as u32, data.len() as u32, original];
        self.block(6, &[&numbers.map(|number| self.n32(number)).concat()[..], data].concat())
    }

    /// A section with an Ethernet interface of microseconds.
    fn plain(self) -> Vec<u8> {
        [self.section(), self.interface(1, 0, &[])].concat()
    }
}

#[test]
fn pcap_in_both_resolutions_and_byte_orders() {
    for maker in ORDERS {
        for (magic, fraction, ns) in [(0xa1b2_c3d4, 123_456, NS - 789), (0xa1b2_3c4d, 123_456_789, NS)] {
            let file = [maker.pcap(magic, 1), maker.record(SECOND, fraction, 1514, &[7; 64])].concat();
            let expected = (Captured { ns: Some(ns), original_bytes: 1514 }, vec![7; 64]);
            assert_eq!(frames(&file), [expected]);
        }
    }
    // The bytes themselves, once.
    let file = b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00\0\0\0\0\0\0\0\0\xff\xff\0\0\x01\0\0\0\
                 \x02\0\0\0\x03\0\0\0\x01\0\0\0\x05\0\0\0\xaa";
    assert_eq!(frames(file), [(Captured { ns: Some(2_000_003_000), original_bytes: 5 }, vec![0xaa])]);
}

#[test]
fn the_last_time_that_pcap_can_say() {
    let file = [LITTLE.pcap(0xa1b2_3c4d, 1), LITTLE.record(u32::MAX, 999_999_999, 1, &[1])].concat();
    assert_eq!(frames(&file)[0].0.ns, Some(4_294_967_295_999_999_999));
}

#[test]
fn the_extra_bits_of_a_link_type_are_no_part_of_it() {
    let file = LITTLE.pcap(0xa1b2_c3d4, 0x2400_0001);
    assert_eq!(frames(&file), []);
}

#[test]
fn pcapng_in_all_resolutions_and_byte_orders() {
    let ns = |code: u8, offset: i64, ticks: u64| -> Vec<Option<u64>> {
        ORDERS
            .map(|maker| {
                let options = [
                    maker.option(2, b"a name"),
                    maker.option(9, &[code]),
                    maker.option(14, &maker.n64(offset as u64)),
                    maker.option(0, &[]),
                ];
                let interface = maker.interface(1, 0, &options.concat());
                let file = [maker.section(), interface, maker.enhanced(0, ticks, 3, &[1, 2, 3])].concat();
                let frames = frames(&file);
                assert_eq!(frames[0].1, [1, 2, 3]);
                frames[0].0.ns
            })
            .to_vec()
    };
    let both = |ns| vec![ns, ns];
    assert_eq!(ns(0, 0, 1_700_000_000), both(Some(1_700_000_000_000_000_000)));
    assert_eq!(ns(3, 0, 1_700_000_000_123), both(Some(1_700_000_000_123_000_000)));
    assert_eq!(ns(6, 0, 1_700_000_000_123_456), both(Some(NS - 789)));
    assert_eq!(ns(9, 0, NS), both(Some(NS)));
    assert_eq!(ns(12, 0, 5_000_999), both(Some(5_000)));
    assert_eq!(ns(127, 0, u64::MAX), both(Some(0)));
    // Powers of two: half a second is 2^9 of 2^10.
    assert_eq!(ns(0x80 | 10, 0, 3 * 1024 + 512), both(Some(3_500_000_000)));
    assert_eq!(ns(0x80 | 32, 0, 1 << 31), both(Some(500_000_000)));
    assert_eq!(ns(0x80, 0, 7), both(Some(7_000_000_000)));
    assert_eq!(ns(0xff, 0, u64::MAX), both(Some(0)));
    // Offsets.
    assert_eq!(ns(9, 1_700_000_000, 123_456_789), both(Some(NS)));
    assert_eq!(ns(6, -1, 2_000_000), both(Some(1_000_000_000)));
    assert_eq!(ns(6, -2, 1_000_000), both(None));
    assert_eq!(ns(0, i64::MAX, u64::MAX), both(None));
    assert_eq!(ns(0x80, i64::MIN, u64::MAX), both(None));
}

#[test]
fn without_a_resolution_pcapng_is_in_microseconds() {
    for maker in ORDERS {
        let file = [maker.plain(), maker.enhanced(0, 1_700_000_000_123_456, 60, &[0; 60])].concat();
        assert_eq!(frames(&file)[0].0.ns, Some(NS - 789));
    }
}

#[test]
fn every_kind_of_packet_block_and_others_between() {
    for maker in ORDERS {
        let old = [
            &maker.n16(0)[..],
            &maker.n16(99), // drops
            &maker.n32(0),
            &maker.n32(5),
            &maker.n32(3),
            &maker.n32(70),
            &[4, 5, 6, 0],
            &maker.option(2, &[0; 4]), // flags
        ]
        .concat();
        let simple = [&maker.n32(9)[..], &[1; 9]].concat();
        let with_options = [
            [0, 0, 7, 1, 1].map(|number| maker.n32(number)).concat(),
            vec![8, 0, 0, 0],
            maker.option(1, b"a comment"),
            maker.option(0, &[]),
        ]
        .concat();
        let file = [
            maker.plain(),
            maker.block(4, &[0; 8]),
            maker.block(2, &old),
            maker.block(0x0bad, &[1; 16]),
            maker.block(3, &simple),
            maker.block(5, &[0; 12]),
            maker.block(6, &with_options),
        ]
        .concat();
        let expected = [
            (Captured { ns: Some(5_000), original_bytes: 70 }, vec![4, 5, 6]),
            (Captured { ns: None, original_bytes: 9 }, vec![1; 9]),
            (Captured { ns: Some(7_000), original_bytes: 1 }, vec![8]),
        ];
        assert_eq!(frames(&file), expected);
    }
}

#[test]
fn a_simple_packet_is_cut_by_the_snap_length_not_by_its_padding() {
    let simple = [&LITTLE.n32(1000)[..], &[1, 2, 3, 4, 5, 0, 0, 0]].concat();
    let file = [LITTLE.section(), LITTLE.interface(1, 5, &[]), LITTLE.block(3, &simple)].concat();
    assert_eq!(frames(&file), [(Captured { ns: None, original_bytes: 1000 }, vec![1, 2, 3, 4, 5])]);
}

#[test]
fn sections_have_their_own_byte_order_and_interfaces() {
    let [little, big] = ORDERS;
    let nanoseconds = |maker: Maker| maker.interface(1, 0, &maker.option(9, &[9]));
    let file = [
        little.plain(),
        nanoseconds(little),
        little.enhanced(1, 5, 1, &[1]),
        little.enhanced(0, 5, 1, &[2]),
        big.section(),
        nanoseconds(big),
        big.enhanced(0, 5, 1, &[3]),
        big.enhanced(1, 5, 1, &[4]),
    ]
    .concat();
    let (frames, error) = read(&mut open(&file));
    let times: Vec<_> = frames.iter().map(|(captured, frame)| (captured.ns.unwrap(), frame[0])).collect();
    assert_eq!(times, [(5, 1), (5_000, 2), (5, 3)]);
    let last = file.len() - big.enhanced(1, 5, 1, &[4]).len();
    assert_eq!(flaw(error), (last as u64, Flaw::UnknownInterface { interface: 1, known: 1 }));
}

#[test]
fn what_is_not_ethernet_is_refused_with_its_name() {
    let error = CaptureReader::open(&LITTLE.pcap(0xa1b2_c3d4, 113)[..]).unwrap_err().to_string();
    assert!(error.contains("Linux cooked (113)") && error.contains("tcprewrite"), "{error}");
    let file = [
        LITTLE.plain(),
        LITTLE.interface(127, 0, &[]),
        LITTLE.enhanced(0, 1, 1, &[1]),
        LITTLE.enhanced(1, 2, 1, &[2]),
        LITTLE.enhanced(0, 3, 1, &[3]),
    ]
    .concat();
    let (frames, error) = read(&mut open(&file));
    assert_eq!(frames.len(), 1);
    let error = error.unwrap().to_string();
    assert!(error.contains("radiotap (127)") && error.contains("at byte 104"), "{error}");
    let mut reader = open(&file).keep_going(true);
    assert_eq!(read(&mut reader).0.len(), 2);
    let first = Some((104, Flaw::LinkType(LinkType(127))));
    assert_eq!(reader.skipped(), Skipped { places: 1, bytes: 36, first });
}

#[test]
fn other_files_are_named() {
    let message = |file: &[u8]| match CaptureReader::open(file) {
        Err(error @ CaptureError::NotACapture(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(message(b"").contains("it has 0 bytes"));
    assert!(message(b"\x1f\x8b\x08\x00rest").contains("gzip -dc"));
    assert!(message(b"\x34\xcd\xb2\xa1rest").contains("editcap -F pcap"));
    assert!(message(b"{ udp() }").contains("7b 20 75 64"));
}

#[test]
fn disorder_is_counted() {
    let times = [5, 3, 4, 4, 9, 1];
    let records = times.map(|second| LITTLE.record(second, 0, 1, &[1])).concat();
    let file = [LITTLE.pcap(0xa1b2_c3d4, 1), records].concat();
    let mut reader = open(&file);
    assert_eq!(read(&mut reader).0.len(), 6);
    assert_eq!(reader.out_of_order(), 2);
}

#[test]
fn a_frame_that_nothing_can_send_is_an_error_or_skipped() {
    let long = vec![1; FRAME_BYTES_MAX + 1];
    let pcap = [
        LITTLE.pcap(0xa1b2_c3d4, 1),
        LITTLE.record(1, 0, long.len() as u32, &long),
        LITTLE.record(1, 0, 65_535, &long[1..]),
    ]
    .concat();
    let pcapng = [
        LITTLE.plain(),
        LITTLE.enhanced(0, 1, long.len() as u32, &long),
        LITTLE.enhanced(0, 1, 65_535, &long[1..]),
    ]
    .concat();
    for file in [pcap, pcapng] {
        let mut reader = open(&file);
        let (none, error) = read(&mut reader);
        assert_eq!((none.len(), flaw(error).1), (0, Flaw::FrameLength(65_536)));
        let mut reader = open(&file).keep_going(true);
        let (one, error) = read(&mut reader);
        assert!(error.is_none());
        assert_eq!((one.len(), one[0].1.len(), reader.skipped().places), (1, 65_535, 1));
    }
}

/// A capture of five small frames of each kind, and where its records or blocks begin.
fn small(pcapng: bool) -> (Vec<u8>, Vec<usize>) {
    let mut file = if pcapng { LITTLE.plain() } else { LITTLE.pcap(0xa1b2_c3d4, 1) };
    let mut starts = if pcapng { vec![0, 28] } else { vec![0] };
    for number in 0..5 {
        starts.push(file.len());
        let frame = [number as u8 + 1; 14];
        file.extend(if pcapng {
            LITTLE.enhanced(0, 1_700_000_000_000_000 + number, 60, &frame)
        } else {
            LITTLE.record(SECOND, number as u32, 60, &frame)
        });
    }
    starts.push(file.len());
    (file, starts)
}

#[test]
fn a_file_cut_anywhere_gives_the_frames_before_and_names_the_place() {
    for pcapng in [false, true] {
        let (file, starts) = small(pcapng);
        let all = frames(&file);
        let headers = starts.len() - 6;
        for cut in 0..file.len() {
            let part = &file[..cut];
            let Ok(mut reader) = CaptureReader::open(part) else {
                assert!(cut < starts[1]);
                continue;
            };
            let (frames, error) = read(&mut reader);
            let whole = starts[headers..].iter().filter(|&&start| start <= cut).count().saturating_sub(1);
            assert_eq!(frames, all[..whole], "cut at {cut}");
            if starts.contains(&cut) {
                assert!(error.is_none(), "cut at {cut}: {error:?}");
            } else {
                let (offset, flaw) = flaw(error);
                let begun = starts.iter().rev().find(|&&start| start < cut).unwrap();
                assert_eq!(offset, *begun as u64, "cut at {cut}");
                assert!(matches!(flaw, Flaw::CutShort { there, .. } if there == (cut - begun) as u64));
            }
            let mut reader = open(part).keep_going(true);
            assert_eq!(read(&mut reader).0, all[..whole], "cut at {cut}, keeping going");
            let begun = starts.iter().rev().find(|&&start| start <= cut).unwrap();
            assert_eq!(reader.skipped().bytes, (cut - begun) as u64);
        }
    }
}

#[test]
fn one_byte_changed_anywhere_costs_at_most_two_frames_of_five() {
    for pcapng in [false, true] {
        let (file, starts) = small(pcapng);
        let packets = starts[starts.len() - 6];
        for at in 0..file.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut changed = file.clone();
                changed[at] ^= change;
                let Ok(mut reader) = CaptureReader::open(&changed[..]) else {
                    assert!(at < packets);
                    continue;
                };
                let (strict, error) = read(&mut reader);
                assert!(strict.len() <= 5);
                let mut reader = open(&changed).keep_going(true);
                let (frames, none) = read(&mut reader);
                assert!(none.is_none());
                assert!(frames.len() >= strict.len());
                assert_eq!(error.is_some(), reader.skipped().places > 0, "byte {at}");
                if at >= packets {
                    assert!(frames.len() >= 3, "byte {at} changed by {change:#x}: {}", frames.len());
                }
            }
        }
    }
}

#[test]
fn damage_in_the_middle_is_skipped_to_the_next_packet() {
    for pcapng in [false, true] {
        let (file, starts) = small(pcapng);
        let third = starts[starts.len() - 4];
        let all = frames(&file);
        // Rubbish in between, of a length that breaks the alignment, and a packet whose length was overwritten.
        let mut torn = [&file[..third], b"rubbish", &file[third..]].concat();
        let mut reader = open(&torn).keep_going(true);
        assert_eq!(read(&mut reader).0, all);
        assert_eq!((reader.skipped().places, reader.skipped().bytes), (1, 7));
        assert_eq!(reader.skipped().first.unwrap().0, third as u64);
        torn = file.clone();
        torn[third + if pcapng { 4 } else { 8 }..][..4].fill(0xff);
        let mut reader = open(&torn).keep_going(true);
        assert_eq!(read(&mut reader).0, [&all[..2], &all[3..]].concat());
        let (offset, _) = flaw(read(&mut open(&torn)).1);
        assert_eq!(offset, third as u64);
    }
}

#[test]
fn behind_damage_an_interface_has_no_certain_number() {
    // The first interface is damaged: the second is not number 0.
    let mut file = [
        LITTLE.plain(),
        LITTLE.interface(1, 0, &LITTLE.option(9, &[9])),
        LITTLE.enhanced(0, 5, 14, &[1; 14]),
        LITTLE.enhanced(1, 5, 14, &[2; 14]),
        LITTLE.plain(),
        LITTLE.enhanced(0, 5, 14, &[3; 14]),
    ]
    .concat();
    assert_eq!(frames(&file).len(), 3);
    file[28 + 4] ^= 0x40;
    let mut reader = open(&file).keep_going(true);
    let frames = read(&mut reader).0;
    assert_eq!(frames, [(Captured { ns: Some(5_000), original_bytes: 14 }, vec![3; 14])]);
}

#[test]
fn an_interface_with_damaged_options_keeps_its_number() {
    let broken = [LITTLE.n16(2), LITTLE.n16(400)].concat();
    let file = [
        LITTLE.section(),
        LITTLE.interface(1, 0, &broken),
        LITTLE.interface(1, 0, &LITTLE.option(9, &[9])),
        LITTLE.enhanced(0, 5, 1, &[1]),
        LITTLE.enhanced(1, 5, 1, &[2]),
    ]
    .concat();
    assert_eq!(flaw(read(&mut open(&file)).1), (28, Flaw::Options));
    let frames = read(&mut open(&file).keep_going(true)).0;
    assert_eq!(frames, [(Captured { ns: Some(5), original_bytes: 1 }, vec![2])]);
}

#[test]
fn a_packet_longer_than_its_block_ends_there() {
    let mut block = LITTLE.enhanced(0, 5, 60, &[1; 60]);
    block[20] = 100;
    let file = [LITTLE.plain(), block, LITTLE.enhanced(0, 6, 1, &[2])].concat();
    assert_eq!(flaw(read(&mut open(&file)).1), (48, Flaw::PacketLength { bytes: 100, most: 60 }));
    assert_eq!(read(&mut open(&file).keep_going(true)).0.len(), 1);
}

#[test]
fn long_blocks_of_other_types_are_skipped_and_longer_ones_refused() {
    let file = [LITTLE.plain(), LITTLE.block(10, &vec![1; 3_000_000]), LITTLE.enhanced(0, 5, 1, &[2])];
    let whole = file.concat();
    let mut reader = CaptureReader::open(Drips(&whole, 4096)).unwrap();
    assert_eq!(read(&mut reader).0.len(), 1);
    assert!(reader.window.room_bytes() <= 1 << 20);
    let mut longer = file;
    longer[1][4..8].copy_from_slice(&0x4000_0000_u32.to_le_bytes());
    let longer = longer.concat();
    let expected = Flaw::BlockLength { kind: 10, bytes: 0x4000_0000 };
    assert_eq!(flaw(read(&mut open(&longer)).1), (48, expected));
    assert_eq!(read(&mut open(&longer).keep_going(true)).0.len(), 1);
}

/// A reader that gives little at a time, and is interrupted.
struct Drips<'a>(&'a [u8], usize);

impl Read for Drips<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.0.len() % 3 == 1 {
            self.1 += 1;
            if self.1.is_multiple_of(2) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        let bytes = self.1.min(out.len()).min(self.0.len());
        out[..bytes].copy_from_slice(&self.0[..bytes]);
        self.0 = &self.0[bytes..];
        Ok(bytes)
    }
}

#[test]
fn a_pipe_may_give_one_byte_at_a_time() {
    for pcapng in [false, true] {
        let (file, _) = small(pcapng);
        assert_eq!(read(&mut CaptureReader::open(Drips(&file, 1)).unwrap()).0, frames(&file));
    }
}

#[test]
fn a_failing_file_is_an_error_even_when_keeping_going() {
    struct Fails(bool);
    impl Read for Fails {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let header = LITTLE.pcap(0xa1b2_c3d4, 1);
            if std::mem::replace(&mut self.0, true) {
                return Err(io::Error::from_raw_os_error(5));
            }
            out[..24].copy_from_slice(&header);
            Ok(24)
        }
    }
    let mut reader = CaptureReader::open(Fails(false)).unwrap().keep_going(true);
    let error = read(&mut reader).1.unwrap().to_string();
    assert!(error.starts_with("read the capture at byte 24: "), "{error}");
}

/// Random bytes, the same every time.
fn noise(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    }
}

#[test]
fn random_bytes_end_soon_and_cost_little_memory() {
    for seed in 0..300 {
        let mut byte = noise(seed);
        let pcapng = seed % 2 == 0;
        let start = if pcapng { LITTLE.plain() } else { LITTLE.pcap(0xa1b2_c3d4, 1) };
        // Some with few different bytes, which look like lengths more often.
        let mask = [0xff, 0x0f, 0x03][seed as usize % 3];
        let file: Vec<u8> = start.iter().copied().chain((0..20_000).map(|_| byte() & mask)).collect();
        for keep_going in [false, true] {
            let mut reader = open(&file).keep_going(keep_going);
            let (frames, _) = read(&mut reader);
            assert!(frames.iter().all(|(captured, frame)| captured.original_bytes as usize >= frame.len()));
            assert!(reader.window.room_bytes() <= 1 << 20, "{} bytes", reader.window.room_bytes());
            assert!(reader.skipped().bytes <= file.len() as u64);
        }
    }
}

#[test]
fn looking_for_blocks_moves_bytes_a_few_times_at_most() {
    // Every byte may be the start of a block or record whose other end is as far away as possible.
    let block = [LITTLE.n32(6), LITTLE.n32(2 * CAPTURED_BYTES_MAX)].concat();
    let record =
        LITTLE.record(0, 0, FRAME_BYTES_MAX as u32, &[]).iter().copied().chain([0; 4]).collect::<Vec<u8>>();
    let mut record = record;
    record[8..12].copy_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
    for (mut file, unit) in [(LITTLE.plain(), block), (LITTLE.pcap(0xa1b2_c3d4, 1), record)] {
        file.extend([0xff; 16]);
        while file.len() < 6_000_000 {
            file.extend(&unit);
        }
        let mut reader = open(&file).keep_going(true);
        read(&mut reader);
        assert!(reader.window.moved <= 4 * file.len() as u64, "{} of {}", reader.window.moved, file.len());
        assert!(reader.window.room_bytes() <= 1 << 20);
    }
}
