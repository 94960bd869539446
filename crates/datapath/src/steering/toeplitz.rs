//! The Toeplitz hash (Krawczyk, "New Hash Functions for Message Authentication", 1995), as "Receive Side Scaling" of
//! Microsoft defines it over addresses and ports.

use crate::wire::{Addresses, Parsed, Ports};

/// Source and destination address of IPv6, source and destination port.
const INPUT_BYTES_MAX: usize = 16 + 16 + 2 + 2;
const KEY_BYTES: usize = INPUT_BYTES_MAX + 4;

/// What makes one hash differ from another. Long enough for IPv6 with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub [u8; KEY_BYTES]);

impl Key {
    /// The key of Microsoft's verification suite, which most devices begin with.
    pub const MICROSOFT: Key = Key([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// Both directions of a flow have the same hash, as the key repeats itself after 16 bits (Woo and Park, "Scalable
    /// TCP Session Monitoring with Symmetric Receive-side Scaling", 2012). Such hashes have fewer different values.
    pub const SYMMETRIC: Key = {
        let mut key = [0x6d; KEY_BYTES];
        let mut at = 1;
        while at < KEY_BYTES {
            key[at] = 0x5a;
            at += 2;
        }
        Key(key)
    };
}

/// The hash as it is defined, bit by bit: for each bit of the input that is set, the 32 bits of the key from there
/// on. Input beyond 36 bytes is not hashed.
pub fn toeplitz(key: &Key, input: &[u8]) -> u32 {
    let mut hash = 0;
    let [a, b, c, d, rest @ ..] = &key.0;
    let mut window = u32::from_be_bytes([*a, *b, *c, *d]);
    for (byte, next) in input.iter().zip(rest) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

/// The same hash by tables: for each half byte of the input what it adds, worked out before. 4.5 KiB, so that it
/// stays in the first cache beside everything else; a table by bytes would have 36 KiB.
#[derive(Clone, Debug)]
pub struct Toeplitz {
    halves: [[u32; 16]; 2 * INPUT_BYTES_MAX],
}

impl Toeplitz {
    /// Works out the tables.
    pub fn new(key: &Key) -> Toeplitz {
        let mut halves = [[0; 16]; 2 * INPUT_BYTES_MAX];
        for (at, table) in halves.iter_mut().enumerate() {
            let mut input = [0; INPUT_BYTES_MAX];
            for (value, entry) in table.iter_mut().enumerate() {
                input[at / 2] = if at % 2 == 0 { value << 4 } else { value } as u8;
                *entry = toeplitz(key, &input);
            }
        }
        Toeplitz { halves }
    }

    /// Of a flow. Without ports where it has none, or where they are not to count.
    #[inline]
    pub fn hash(&self, addresses: &Addresses, ports: Option<Ports>) -> u32 {
        let ports = ports.map(|ports| {
            let ([a, b], [c, d]) = (ports.source.to_be_bytes(), ports.destination.to_be_bytes());
            [a, b, c, d]
        });
        match *addresses {
            Addresses::V4 { source, destination } => {
                let hash =
                    self.part::<0, 4>(source.to_be_bytes()) ^ self.part::<4, 4>(destination.to_be_bytes());
                hash ^ ports.map_or(0, |ports| self.part::<8, 4>(ports))
            }
            Addresses::V6 { source, destination } => {
                let hash =
                    self.part::<0, 16>(source.to_be_bytes()) ^ self.part::<16, 16>(destination.to_be_bytes());
                hash ^ ports.map_or(0, |ports| self.part::<32, 4>(ports))
            }
        }
    }

    /// Of a packet: with ports, unless it is a fragment, so that all fragments of a packet have the same.
    #[inline]
    pub fn hash_packet(&self, packet: &Parsed) -> u32 {
        self.hash(&packet.addresses, packet.flow_ports())
    }

    /// What these bytes add that begin at byte `AT` of the input.
    #[inline(always)]
    fn part<const AT: usize, const N: usize>(&self, bytes: [u8; N]) -> u32 {
        let mut hash = 0;
        for (at, byte) in bytes.into_iter().enumerate() {
            let half = 2 * (AT + at);
            hash ^= self.halves[half][usize::from(byte >> 4)] ^ self.halves[half + 1][usize::from(byte & 15)];
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn input(addresses: &Addresses, ports: Option<Ports>) -> Vec<u8> {
        let mut input = match addresses {
            Addresses::V4 { source, destination } => {
                [source.to_be_bytes(), destination.to_be_bytes()].concat()
            }
            Addresses::V6 { source, destination } => {
                [source.to_be_bytes(), destination.to_be_bytes()].concat()
            }
        };
        if let Some(ports) = ports {
            input.extend([ports.source.to_be_bytes(), ports.destination.to_be_bytes()].concat());
        }
        input
    }

    fn check(addresses: Addresses, ports: (u16, u16), without: u32, with: u32) {
        let fast = Toeplitz::new(&Key::MICROSOFT);
        let (source, destination) = ports;
        for (ports, wanted) in [(None, without), (Some(Ports { source, destination }), with)] {
            assert_eq!(toeplitz(&Key::MICROSOFT, &input(&addresses, ports)), wanted, "{addresses:?}");
            assert_eq!(fast.hash(&addresses, ports), wanted, "{addresses:?}");
        }
    }

    /// Microsoft, "Verifying the RSS Hash Calculation" (Windows drivers, network), the table of IPv4.
    #[test]
    fn microsofts_vectors_of_ipv4() {
        for (destination, to, source, from, without, with) in [
            ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
            ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
            ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0_a5de, 0x5c2b_394a),
            ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x8298_9176, 0xafc7_327f),
            ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d18_09c5, 0x10e8_28a2),
        ] {
            let bits = |text: &str| text.parse::<Ipv4Addr>().unwrap().to_bits();
            let addresses = Addresses::V4 { source: bits(source), destination: bits(destination) };
            check(addresses, (from, to), without, with);
        }
    }

    /// The same document, the table of IPv6.
    #[test]
    fn microsofts_vectors_of_ipv6() {
        for (destination, to, source, from, without, with) in [
            ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
            ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
            (
                "fe80::200:f8ff:fe21:67cf",
                38024,
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ] {
            let bits = |text: &str| text.parse::<Ipv6Addr>().unwrap().to_bits();
            let addresses = Addresses::V6 { source: bits(source), destination: bits(destination) };
            check(addresses, (from, to), without, with);
        }
    }

    fn addresses() -> impl Strategy<Value = Addresses> {
        prop_oneof![
            any::<(u32, u32)>().prop_map(|(source, destination)| Addresses::V4 { source, destination }),
            any::<(u128, u128)>().prop_map(|(source, destination)| Addresses::V6 { source, destination }),
        ]
    }

    fn ports() -> impl Strategy<Value = Option<Ports>> {
        proptest::option::of(
            any::<(u16, u16)>().prop_map(|(source, destination)| Ports { source, destination }),
        )
    }

    proptest! {
        #[test]
        fn tables_give_what_bits_give(key in any::<[[u8; 20]; 2]>(), addresses in addresses(), ports in ports()) {
            let mut bytes = [0; KEY_BYTES];
            bytes.copy_from_slice(key.as_flattened());
            let key = Key(bytes);
            let wanted = toeplitz(&key, &input(&addresses, ports));
            prop_assert_eq!(Toeplitz::new(&key).hash(&addresses, ports), wanted);
        }

        #[test]
        fn the_symmetric_key_is(addresses in addresses(), ports in ports()) {
            let toeplitz = Toeplitz::new(&Key::SYMMETRIC);
            let back = ports.map(|p| Ports { source: p.destination, destination: p.source });
            prop_assert_eq!(toeplitz.hash(&addresses, ports), toeplitz.hash(&addresses.swapped(), back));
        }
    }

    #[test]
    fn longer_input_does_not_panic() {
        let long = [0xff; 100];
        assert_eq!(toeplitz(&Key::MICROSOFT, &long), toeplitz(&Key::MICROSOFT, &long[..36]));
    }
}
