//! The addition of `INCRBYFLOAT`, in decimal.
//!
//! ```text
//! "10.50" + "0.1"  ─parse─►  1050 × 10^-2, 1 × 10^-1  ─add─►  1060 × 10^-2  ─round, print─►  "10.6"
//! ```
//! The sum is exact. It is rounded to 17 digits behind the point, a tie to the even digit, and printed without an
//! exponent, without zeros at the end, without a sign if it is zero.
//!
//! Redis adds in 80-bit floating point, with 64 significant bits. It prints the same text
//! - if both numbers and their sum have at most 64 significant bits, as all integers to 2^64 have,
//! - if both numbers and their sum are below 32, with at most 17 digits behind the point.
//!
//! Beyond those bounds it prints its rounding error, and this module does not:
//!
//! | sum | here | Redis |
//! |---|---|---|
//! | `44262.1` + `-7` | 44255.1 | 44255.10000000000000142 |
//! | `1e30` + `0` | 1 and 30 zeros | 1000000000000000000024696061952 |
//! | `18446744073709551616` + `1` | 18446744073709551617 | 18446744073709551616 |
//!
//! At the ends of the 80-bit range, numbers are refused as Redis refuses them. Here a bound has 40 digits.
//!
//! Work and memory are bounded: a text has at most 5,119 bytes, a number at most 4,933 digits before the point and
//! about 10,100 behind it, a result at most 4,952 bytes. This module does not know the bound of a value.

mod fields;
mod hexadecimal;
mod parse;

use self::parse::parse;

/// Digits behind the point that a result may have.
const PLACES_MAX: usize = 17;

/// The first digits of the least number that 80 bits round to infinity: 2^16384 - 2^16319, with [`ORDER_MAX`].
const INFINITE: [u8; 40] = *b"1189731495357231765053511589829488667966";
/// The first digits of the greatest number that 80 bits round to zero: 2^-16446, with [`ORDER_MIN`].
const VANISHING: [u8; 40] = *b"1822599765941237301264202966809709908199";
/// The greatest order of a number within the 80-bit range.
const ORDER_MAX: i64 = 4_933;
/// The least order of such a number other than zero.
const ORDER_MIN: i64 = -4_950;

/// Why there is no sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddError {
    /// `ERR value is not a valid float`: of one of both texts, or its number is outside the 80-bit range.
    NotAFloat,
    /// `ERR increment would produce NaN or Infinity`
    NotFinite,
}

/// The text of the sum.
pub(super) fn add(value: &[u8], increment: &[u8]) -> Result<Vec<u8>, AddError> {
    let numbers = (parse(value)?, parse(increment)?);
    let (Number::Finite(value), Number::Finite(increment)) = numbers else { return Err(AddError::NotFinite) };
    let sum = Sum::of(&value, &increment).rounded();
    if sum.is_infinite() { Err(AddError::NotFinite) } else { Ok(sum.text()) }
}

/// What a text is.
#[derive(Debug)]
enum Number {
    Finite(Decimal),
    Infinite,
}

/// A finite number: its digits as an integer, divided by 10^places.
#[derive(Debug, Default)]
struct Decimal {
    is_negative: bool,
    /// From the first digit other than 0 to the last such digit, as ASCII. None for zero.
    digits: Vec<u8>,
    /// Negative for an integer with zeros at its end.
    places: i64,
}

impl Decimal {
    /// The number of these digits, in ASCII, that may begin and end with zeros.
    fn new(is_negative: bool, mut digits: Vec<u8>, places: i64) -> Self {
        let leading = digits.iter().take_while(|&&digit| digit == b'0').count();
        digits.drain(..leading);
        let trailing = digits.iter().rev().take_while(|&&digit| digit == b'0').count();
        digits.truncate(digits.len() - trailing);
        if digits.is_empty() {
            return Self { is_negative, ..Self::default() };
        }
        Self { is_negative, digits, places: places - count(trailing) }
    }

    /// The number is 0.ddd × 10^order.
    fn order(&self) -> i64 {
        count(self.digits.len()) - self.places
    }

    /// Whether 80 bits round the number to infinity.
    fn is_infinite(&self) -> bool {
        let order = self.order();
        order > ORDER_MAX || (order == ORDER_MAX && self.digits.as_slice() >= &INFINITE[..])
    }

    /// Whether 80 bits round the number to zero, and it is not zero.
    fn is_vanishing(&self) -> bool {
        let order = self.order();
        let is_small = order < ORDER_MIN || (order == ORDER_MIN && self.digits.as_slice() <= &VANISHING[..]);
        is_small && !self.digits.is_empty()
    }

    /// The number without exponent. The caller has rounded it.
    fn text(&self) -> Vec<u8> {
        if self.digits.is_empty() {
            return b"0".to_vec();
        }
        let order = self.order();
        let whole = usize::try_from(order).unwrap_or_default();
        let zeros = usize::try_from(-order).unwrap_or_default();
        let mut text = Vec::with_capacity(self.digits.len().max(whole) + zeros + 3);
        text.extend(self.is_negative.then_some(b'-'));
        if whole == 0 {
            text.push(b'0');
        }
        let (before, behind) = self.digits.split_at_checked(whole).unwrap_or((&self.digits, &[]));
        text.extend_from_slice(before);
        text.extend(std::iter::repeat_n(b'0', whole - before.len()));
        if !behind.is_empty() {
            text.push(b'.');
            text.extend(std::iter::repeat_n(b'0', zeros));
            text.extend_from_slice(behind);
        }
        text
    }
}

/// A sum on its way from two numbers to the rounded one.
struct Sum {
    is_negative: bool,
    /// From the last to the first, so that carries go forward. The first is for carries alone.
    digits: Vec<i8>,
    places: usize,
}

impl Sum {
    /// The exact sum.
    fn of(left: &Decimal, right: &Decimal) -> Self {
        let places = usize::try_from(left.places.max(right.places)).unwrap_or_default();
        let mut sum = Self { is_negative: false, digits: Vec::new(), places };
        sum.accumulate(left);
        sum.accumulate(right);
        // A place for the carry of the sum, and for the carry of rounding up.
        sum.digits.push(0);
        if sum.carry() < 0 {
            sum.is_negative = true;
            sum.digits.iter_mut().for_each(|digit| *digit = -*digit);
            sum.carry();
        }
        sum
    }

    /// Adds the digits of a number, place by place, without carries.
    fn accumulate(&mut self, number: &Decimal) {
        let zeros = usize::try_from(count(self.places) - number.places).unwrap_or_default();
        let length = zeros + number.digits.len();
        if self.digits.len() < length {
            self.digits.resize(length, 0);
        }
        for (sum, &digit) in self.digits.iter_mut().skip(zeros).zip(number.digits.iter().rev()) {
            let digit = (digit - b'0').cast_signed();
            *sum += if number.is_negative { -digit } else { digit };
        }
    }

    /// Brings each digit between 0 and 9. Returns the carry of the first digit: -1 if the sum is below zero.
    fn carry(&mut self) -> i8 {
        let mut carry = 0;
        for digit in &mut self.digits {
            *digit += carry;
            carry = digit.div_euclid(10);
            *digit = digit.rem_euclid(10);
        }
        carry
    }

    /// The number with at most 17 places, a tie rounded to the even digit.
    fn rounded(mut self) -> Decimal {
        let cut = self.places.saturating_sub(PLACES_MAX).min(self.digits.len());
        // The first digit is 0 or 1, a carry. So a sum that is dropped as a whole is not rounded up.
        let dropped: Vec<i8> = self.digits.drain(..cut).collect();
        let is_up = match dropped.split_last() {
            Some((5, below)) => {
                below.iter().any(|&digit| digit > 0) || self.digits.first().is_some_and(|last| last % 2 == 1)
            }
            Some((first, _)) => *first > 5,
            None => false,
        };
        if is_up && let Some(last) = self.digits.first_mut() {
            *last += 1;
            self.carry();
        }
        let digits = self.digits.iter().rev().map(|digit| b'0' + digit.cast_unsigned()).collect();
        Decimal::new(self.is_negative, digits, count(self.places.min(PLACES_MAX)))
    }
}

/// A number of digits as a place. Texts are short, so each number fits.
fn count(digits: usize) -> i64 {
    i64::try_from(digits).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
