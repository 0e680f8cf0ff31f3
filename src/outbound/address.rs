//! Which addresses belong to everybody's network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 networks that are not the public one: this host, private, shared
/// (carriers'), loopback, link-local (with the metadata services of clouds),
/// protocols, examples, measurements, groups, and what is reserved.
const NOT_PUBLIC_4: [([u8; 4], u32); 15] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// Parts of the public IPv6 network (2000::/3) that are not: protocols with
/// Teredo, examples (two), and 6to4, which has any IPv4 address in it.
const NOT_PUBLIC_6: [(u128, u32); 4] =
    [(0x2001_0000 << 96, 23), (0x2001_0db8 << 96, 32), (0x3fff_0000 << 96, 20), (0x2002_0000 << 96, 16)];

/// Whether an address can be reached by everybody, and so is nobody's own.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_4(address),
        IpAddr::V6(address) => is_public_6(address),
    }
}

fn is_public_4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    NOT_PUBLIC_4.iter().all(|(network, length)| {
        let shift = 32 - length;
        bits >> shift != Ipv4Addr::from(*network).to_bits() >> shift
    })
}

fn is_public_6(address: Ipv6Addr) -> bool {
    if let Some(inner) = address.to_ipv4_mapped() {
        return is_public_4(inner);
    }
    let bits = address.to_bits();
    // Translated to IPv4 on the way (64:ff9b::/96).
    if bits >> 32 == 0x0064_ff9b << 64 {
        return is_public_4(Ipv4Addr::from_bits(bits as u32));
    }
    bits >> 125 == 1
        && NOT_PUBLIC_6.iter().all(|(network, length)| {
            let shift = 128 - length;
            bits >> shift != network >> shift
        })
}
