#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::bodies::decode_v3(data));
