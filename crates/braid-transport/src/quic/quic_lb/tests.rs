//! Test vectors of the draft, round trips, and configurations out of range.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Key of the vectors in appendix B.2.
const KEY: &str = "8f95f09245765f80256934e50c66207f";

fn hex(text: &str) -> Vec<u8> {
    from_hex(text).expect("hexadecimal")
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encode(lb: &QuicLb, nonce: &[u8]) -> Vec<u8> {
    let (mut padded, mut id) = ([0xEE; MAX_NONCE], [0xDD; 20]);
    padded[..nonce.len()].copy_from_slice(nonce);
    let length = lb.encode(&padded, &mut id);
    id[..length].to_vec()
}

/// Appendices B.1 and B.2, and the example of 5.3.2. Left out is the second vector of B.1, whose nonce has half an
/// octet and whose first octet tells another length. The config ID of the last one is that of its first octet, not
/// the one printed beside it.
#[test]
fn vectors_of_the_draft() {
    for (config_id, key, server_id, nonce, id) in [
        (0, None, "c4605e", "4504cc4f", "07c4605e4504cc4f"),
        (0, Some("fdf726a9893ec05c0632d3956680baf0"), "31441a", "9c69c275", "0767947d29be054a"),
        (0, Some(KEY), "ed793a", "ee080dbf", "0720b1d07b359d3c"),
        (1, Some(KEY), "ed793a51d49b8f5fab65", "ee080dbf48", "2fcc381bc74cb4fbad2823a3d1f8fed2"),
        (2, Some(KEY), "ed793a51d49b8f5f", "ee080dbf48c0d1e5", "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
        (0, Some(KEY), "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"),
    ] {
        let key = key.map(|key| key.parse().expect("key"));
        let server_id: ServerId = server_id.parse().expect("server ID");
        let lb = QuicLb::new(config_id, server_id, nonce.len() / 2, key).expect("configuration");
        assert_eq!(to_hex(&encode(&lb, &hex(nonce))), id);
        assert_eq!(lb.format().server_id(&hex(id)), Some(server_id), "{id}");
        assert_eq!(lb.format().id_length(), id.len() / 2);
    }
}

/// Any configuration, and a nonce.
fn configuration() -> impl Strategy<Value = (QuicLb, Vec<u8>)> {
    let key = proptest::option::of(any::<[u8; 16]>().prop_map(QuicLbKey::from));
    let ids = (vec(any::<u8>(), 1..=15)).prop_flat_map(|id| {
        let most = MAX_BODY - id.len();
        (Just(id), vec(any::<u8>(), 4..=most))
    });
    (0..7_u8, ids, key).prop_map(|(config_id, (id, nonce), key)| {
        let server_id = ServerId::new(&id).expect("length");
        (QuicLb::new(config_id, server_id, nonce.len(), key).expect("configuration"), nonce)
    })
}

proptest! {
    #[test]
    fn ids_are_read_as_they_were_made((lb, nonce) in configuration(), behind in vec(any::<u8>(), 0..30)) {
        let (id, format) = (encode(&lb, &nonce), lb.format());
        let server_id = Some(lb.server_id());
        prop_assert_eq!(format.server_id(&id), server_id);
        prop_assert_eq!(id[0], lb.format().config_id() << 5 | u8::try_from(id.len() - 1).expect("short"));

        let long = [&[0xC3, 0, 0, 0, 1, u8::try_from(id.len()).expect("short")], &*id, &behind].concat();
        let header = QuicHeader::parse(&long).expect("long header");
        prop_assert_eq!(header, QuicHeader::Long { destination: &id });
        prop_assert_eq!(format.server_of(header), server_id);
        let short = [&[0x41], &*id, &behind].concat();
        let header = QuicHeader::parse(&short).expect("short header");
        prop_assert_eq!(format.server_of(header), server_id);

        // Cut anywhere, it names no server.
        for end in 0..6 + id.len() {
            prop_assert_eq!(QuicHeader::parse(&long[..end]).and_then(|header| format.server_of(header)), None);
        }
        for end in 0..1 + id.len() {
            prop_assert_eq!(QuicHeader::parse(&short[..end]).and_then(|header| format.server_of(header)), None);
        }
        // Nor does it with another config ID or length in its first octet, or another byte at its end.
        for bit in 0..8 {
            let mut other = id.clone();
            other[0] ^= 1 << bit;
            prop_assert_eq!(format.server_id(&other), None);
        }
        prop_assert_eq!(format.server_id(&[&*id, &[0]].concat()), None);
    }

    /// An observer without the key sees neither the server ID nor that two IDs are of one server.
    #[test]
    fn encrypted_ids_need_their_key((lb, nonce) in configuration()) {
        let id = encode(&lb, &nonce);
        let (length, nonces) = (lb.format().server_id_length(), nonce.len());
        let clear = QuicLb::new(lb.format().config_id(), lb.server_id(), nonces, None).expect("configuration");
        prop_assert_eq!(id == encode(&clear, &nonce), !lb.is_encrypted());
        if length >= 4 {
            let wrong = QuicLbFormat::new(lb.format().config_id(), length, nonces, Some([0xA5; 16].into()));
            prop_assert_ne!(wrong.expect("configuration").server_id(&id), Some(lb.server_id()));
        }
    }
}

#[test]
fn configurations_out_of_range_are_refused() {
    let format = |config_id, server_id, nonce| QuicLbFormat::new(config_id, server_id, nonce, None);
    let text = |error: Result<_, QuicLbError>| error.expect_err("out of range").to_string();
    for (config_id, server_id, nonce) in [(0, 1, 4), (6, 15, 4), (6, 1, 18), (3, 8, 8)] {
        assert!(format(config_id, server_id, nonce).is_ok(), "{config_id} {server_id} {nonce}");
    }
    for (error, part) in [
        (text(format(7, 1, 8)), "7 is no QUIC-LB config ID: give 0 to 6"),
        (text(format(8, 1, 8)), "8 is no QUIC-LB config ID: give 0 to 6"),
        (text(format(0, 0, 8)), "has 1 to 15 bytes, not 0"),
        (text(format(0, 16, 4)), "has 1 to 15 bytes, not 16"),
        (text(format(0, 1, 3)), "a nonce of 3 bytes does not go with a server ID of 1: give 4 to 18"),
        (text(format(0, 1, 19)), "19 bytes does not go with a server ID of 1: give 4 to 18"),
        (text(format(0, 15, 5)), "5 bytes does not go with a server ID of 15: give 4 to 4"),
    ] {
        assert!(error.replace("QUIC-LB nonce", "nonce").contains(part), "{error}");
    }
}

#[test]
fn server_ids_and_keys_are_written_in_hexadecimal() {
    let id: ServerId = "0A1b".parse().expect("server ID");
    assert_eq!((id.as_bytes(), id.to_string()), (&[0x0A, 0x1B][..], "0a1b".to_owned()));
    assert_eq!(ServerId::new(&[0x0A, 0x1B, 0]).map(|longer| longer == id), Ok(false));
    for (text, error) in [
        ("", QuicLbError::ServerIdLength(0)),
        ("00112233445566778899aabbccddeeff", QuicLbError::ServerIdLength(16)),
        ("0", QuicLbError::ServerIdDigits),
        ("0x01", QuicLbError::ServerIdDigits),
        ("ä", QuicLbError::ServerIdDigits),
    ] {
        assert_eq!(text.parse::<ServerId>(), Err(error), "{text}");
    }
    for text in [
        "",
        "00",
        "8f95f09245765f80256934e50c66207",
        "8f95f09245765f80256934e50c66207f00",
        "secretsecretsecretsecretsecretse",
    ] {
        assert_eq!(text.parse::<QuicLbKey>(), Err(QuicLbError::Key));
    }
    let key: QuicLbKey = KEY.parse().expect("key");
    assert_ne!(key, QuicLbKey::from([0; 16]));
    let lb = QuicLb::new(0, id, 4, Some(key)).expect("configuration");
    let shown = format!("{lb:?}").to_lowercase();
    assert!(!shown.contains("8f") && !shown.contains("143"), "{shown}");
}
