//! Encryption of server ID and nonce with AES-128-ECB (5.3.1, 5.3.2).

use aes::Aes128;
use aes::cipher::{BlockDecrypt, BlockEncrypt};

use super::MAX_BODY;

/// Block of AES, bytes. A body of this length is one block.
const BLOCK: usize = 16;

/// Longest half of a body, bytes.
const MAX_HALF: usize = MAX_BODY.div_ceil(2);

/// Encrypts server ID and nonce in place: 5 to 19 bytes.
pub(super) fn encrypt(cipher: &Aes128, body: &mut [u8]) {
    if let Ok(block) = <&mut [u8; BLOCK]>::try_from(&mut *body) {
        return cipher.encrypt_block(block.into());
    }
    let mut halves = Halves::split(body);
    for pass in 1..=4 {
        halves.pass(cipher, pass);
    }
    halves.join(body);
}

/// Decrypts server ID and nonce in place.
pub(super) fn decrypt(cipher: &Aes128, body: &mut [u8]) {
    if let Ok(block) = <&mut [u8; BLOCK]>::try_from(&mut *body) {
        return cipher.decrypt_block(block.into());
    }
    let mut halves = Halves::split(body);
    for pass in (1..=4).rev() {
        halves.pass(cipher, pass);
    }
    halves.join(body);
}

/// Both halves of a body, for the four passes of a Feistel network. The octet in the middle of an odd number of them is
/// shared: its high bits end the left half, its low bits begin the right one.
struct Halves {
    left: [u8; MAX_HALF],
    right: [u8; MAX_HALF],
    /// Bytes of each half.
    half: usize,
    /// Bytes of the body.
    length: u8,
}

impl Halves {
    fn split(body: &[u8]) -> Self {
        let half = body.len().div_ceil(2);
        let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
        let mut halves = Self { left: [0; MAX_HALF], right: [0; MAX_HALF], half, length };
        halves.left[..half].copy_from_slice(&body[..half]);
        halves.right[..half].copy_from_slice(&body[body.len() - half..]);
        halves.clear();
        halves
    }

    /// Clears the bits of the middle octet that belong to the other half.
    fn clear(&mut self) {
        if self.length % 2 == 1 {
            self.left[self.half - 1] &= 0xF0;
            self.right[0] &= 0x0F;
        }
    }

    /// Changes one half by the other: the right one in odd passes, the left one in even passes. A pass undoes itself.
    fn pass(&mut self, cipher: &Aes128, pass: u8) {
        let (input, output) =
            if pass % 2 == 1 { (&self.left, &mut self.right) } else { (&self.right, &mut self.left) };
        let mut block = [0; BLOCK];
        block[..self.half].copy_from_slice(&input[..self.half]);
        block[BLOCK - 2] = self.length;
        block[BLOCK - 1] = pass;
        cipher.encrypt_block((&mut block).into());
        for (octet, mask) in output[..self.half].iter_mut().zip(block) {
            *octet ^= mask;
        }
        self.clear();
    }

    fn join(&self, body: &mut [u8]) {
        let (half, right) = (self.half, body.len() - self.half);
        body[right..].copy_from_slice(&self.right[..half]);
        body[..right].copy_from_slice(&self.left[..right]);
        if right < half {
            body[right] |= self.left[right];
        }
    }
}
