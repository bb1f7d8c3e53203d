//! Hexadecimal numbers as C reads them: `0x1.8p-1` is 1.5 × 2^-1.
//!
//! ```text
//! hexadecimal = (hexdigits ["." [hexdigits]] | "." hexdigits) ["p" [sign] digits]
//!
//! 0x1.8p-1 ─► 0x18 × 2^-5 ─► whole: 0 × 2^0, fraction: 0x18 × 2^123 / 2^128 ─► "0", "75000…" ─► 75 × 10^-2
//! ```
//! Redis keeps 64 bits of such a number. Here 124 bits are kept, and the last of them is set if later bits are not all
//! zero, so that no rounding takes the number for a tie. Bits below 2^-128 are kept in the same way. This file does not
//! read the sign or the `0x`.

use super::fields::Fields;
use super::{Decimal, count};

/// Bits of the mantissa that are kept, at least: one digit less than there is room for.
const MANTISSA_BITS: u32 = 124;

/// Bits behind the point of a fraction, and its decimal digits: 2^-128 has so many.
const FRACTION_BITS: i64 = 128;

/// A number is below 2 to this power, or it is refused: 80 bits round it to infinity.
const BITS_MAX: i64 = 16_384;
/// A number is above 2 to this power, or it is refused: 80 bits round it to zero.
const BITS_MIN: i64 = -16_446;

/// Part of an integer: nine decimal digits.
const LIMB: u64 = 1_000_000_000;
const LIMB_DIGITS: usize = 9;

/// The number of this text, without sign and `0x`.
pub(super) fn parse(is_negative: bool, text: &[u8]) -> Option<Decimal> {
    let fields = Fields::of(text, |byte| matches!(byte, b'p' | b'P'))?;
    let mut mantissa = 0_u128;
    let mut exponent = fields.exponent - 4 * count(fields.behind.len());
    for byte in fields.digits() {
        let digit = char::from(byte).to_digit(16)?;
        if mantissa >> MANTISSA_BITS == 0 {
            mantissa = (mantissa << 4) | u128::from(digit);
        } else {
            mantissa |= u128::from(digit != 0);
            exponent += 4;
        }
    }
    if mantissa == 0 {
        return Some(Decimal { is_negative, ..Decimal::default() });
    }
    let bits = i64::from(u128::BITS - mantissa.leading_zeros()) + exponent;
    let is_least = bits == BITS_MIN + 1 && mantissa.is_power_of_two();
    if bits > BITS_MAX || bits <= BITS_MIN || is_least {
        return None;
    }
    let (whole, fraction) = split(mantissa, exponent);
    let mut digits = whole_digits(whole, exponent);
    digits.extend(fraction_digits(fraction));
    Some(Decimal::new(is_negative, digits, FRACTION_BITS))
}

/// The mantissa before the point, and the fraction behind it in units of 2^-128.
fn split(mantissa: u128, exponent: i64) -> (u128, u128) {
    let Ok(places) = u32::try_from(-exponent) else { return (mantissa, 0) };
    let whole = mantissa.checked_shr(places).unwrap_or_default();
    let fraction = match u128::BITS.checked_sub(places) {
        Some(shift) => mantissa.checked_shl(shift).unwrap_or_default(),
        None => {
            let kept = mantissa.checked_shr(places - u128::BITS).unwrap_or_default();
            let is_exact = mantissa.trailing_zeros() >= places - u128::BITS;
            kept | u128::from(!is_exact)
        }
    };
    (whole, fraction)
}

/// The decimal digits of `whole` times 2^exponent, or of `whole` if the exponent is negative.
fn whole_digits(whole: u128, exponent: i64) -> Vec<u8> {
    // The least limb is first.
    let mut limbs: Vec<u64> = Vec::new();
    for shift in [96, 64, 32, 0] {
        let word = (whole >> shift) & u128::from(u32::MAX);
        multiply_add(&mut limbs, 32, u64::try_from(word).unwrap_or_default());
    }
    let mut missing = u32::try_from(exponent).unwrap_or_default();
    while missing > 0 {
        let shift = missing.min(32);
        multiply_add(&mut limbs, shift, 0);
        missing -= shift;
    }
    limbs.iter().rev().flat_map(|limb| format!("{limb:0LIMB_DIGITS$}").into_bytes()).collect()
}

/// Multiplies an integer by 2^shift and adds a number. Both fit 32 bits, so a limb's product fits 64.
fn multiply_add(limbs: &mut Vec<u64>, shift: u32, addend: u64) {
    let mut carry = addend;
    for limb in limbs.iter_mut() {
        let product = (*limb << shift) + carry;
        *limb = product % LIMB;
        carry = product / LIMB;
    }
    while carry > 0 {
        limbs.push(carry % LIMB);
        carry /= LIMB;
    }
}

/// The 128 decimal digits of a fraction.
fn fraction_digits(mut fraction: u128) -> impl Iterator<Item = u8> {
    (0..FRACTION_BITS).map(move |_| {
        let low = (fraction & u128::from(u64::MAX)) * 10;
        let high = (fraction >> 64) * 10 + (low >> 64);
        fraction = (high << 64) | (low & u128::from(u64::MAX));
        let [digit, ..] = (high >> 64).to_le_bytes();
        b'0' + digit
    })
}
