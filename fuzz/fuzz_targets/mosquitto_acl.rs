#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::rules::mosquitto_acl(data));
