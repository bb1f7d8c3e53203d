//! Sums as Redis prints them, sums that only decimal arithmetic gets right, and texts at every border.

use super::AddError::{NotAFloat, NotFinite};
use super::*;
use crate::seeded_rng::SeededRng;

fn sum(value: &str, increment: &str) -> Result<String, AddError> {
    add(value.as_bytes(), increment.as_bytes()).map(|sum| String::from_utf8(sum).expect("digits are ASCII"))
}

#[test]
fn sums_print_without_exponent_and_without_zeros_at_the_end() {
    for (value, increment, expected) in [
        ("10.50", "0.1", "10.6"),
        ("10.6", "-5", "5.6"),
        ("5.0e3", "2.0e2", "5200"),
        ("0.1", "0.2", "0.3"),
        ("1", "-1", "0"),
        ("3", "-3.0001", "-0.0001"),
        ("999.9", "0.1", "1000"),
        ("-999.9", "-0.1", "-1000"),
        ("1e20", "0", "100000000000000000000"),
        ("1e20", "-1", "99999999999999999999"),
        ("9223372036854775807", "1", "9223372036854775808"),
        ("0.00000000000000001", "-1", "-0.99999999999999999"),
    ] {
        assert_eq!(sum(value, increment).as_deref(), Ok(expected), "{value} + {increment}");
        assert_eq!(sum(increment, value).as_deref(), Ok(expected), "{increment} + {value}");
    }
}

#[test]
fn zero_has_no_sign() {
    for value in ["0", "-0", "+0", "-0.0", "0e99999999999999999999", "-0x0p-99999", "-4e-18", "-5e-18", "1e-4950"] {
        assert_eq!(sum(value, "-0").as_deref(), Ok("0"), "{value}");
    }
    assert_eq!(sum("-5e-18", "-1e-18").as_deref(), Ok("-0.00000000000000001"));
}

#[test]
fn the_seventeenth_place_is_rounded_and_a_tie_goes_to_the_even_digit() {
    for (value, expected) in [
        ("5e-18", "0"),
        ("5.0001e-18", "0.00000000000000001"),
        ("15e-18", "0.00000000000000002"),
        ("25e-18", "0.00000000000000002"),
        ("35e-18", "0.00000000000000004"),
        ("0x1p-18", "0.00000381469726562"),
        ("0x3p-18", "0.00001144409179688"),
        ("0x1.0000000000000000000000000000000000001p-18", "0.00000381469726563"),
        ("0.999999999999999995", "1"),
        ("-0.999999999999999995", "-1"),
    ] {
        assert_eq!(sum(value, "0").as_deref(), Ok(expected), "{value}");
    }
    assert_eq!(sum("0x1p-18", "0x1p-4000").as_deref(), Ok("0.00000381469726563"));
    assert_eq!(sum("0x1p-18", "-0x1p-4000").as_deref(), Ok("0.00000381469726562"));
}

#[test]
fn every_form_of_a_number_is_read() {
    for (value, expected) in [
        (".5", "0.5"),
        ("5.", "5"),
        ("-.5", "-0.5"),
        ("+1", "1"),
        ("00001", "1"),
        ("1E+2", "100"),
        ("1e0001", "10"),
        ("0.e1", "0"),
        ("0x10", "16"),
        ("0X1P+3", "8"),
        ("0x.8", "0.5"),
        ("0x1.p1", "2"),
        ("-0x1p-3", "-0.125"),
        ("0x10000000000000001p-70", "0.015625"),
        ("0xffffffffffffffff", "18446744073709551615"),
    ] {
        assert_eq!(sum(value, "0").as_deref(), Ok(expected), "{value}");
    }
}

#[test]
fn other_texts_are_no_numbers() {
    for text in [
        "", " 1", "1 ", "\t1", "1\0", ".", "-", "+", "-.", "e1", ".e1", "1e", "1e+", "1e+-1", "1e1.5", "1e5e5",
        "0.5.5", "--1", "+-1", "1,5", "1_0", "1f", "0b1", "nan", "-nan", "nan(1)", "infinit", "in", "inf ", "0x",
        "0x.", "0x.p1", "0x1p", "0x1e+1", "0x1p0x1", "0xg", "é",
    ] {
        assert_eq!(sum(text, "1"), Err(NotAFloat), "{text:?}");
        assert_eq!(sum("inf", text), Err(NotAFloat), "{text:?}");
    }
}

#[test]
fn infinity_is_a_number_without_a_sum() {
    for text in ["inf", "-inf", "+INF", "iNfInItY"] {
        assert_eq!(sum(text, "1"), Err(NotFinite));
        assert_eq!(sum("1", text), Err(NotFinite));
        assert_eq!(sum(text, "-inf"), Err(NotFinite));
    }
    assert_eq!(sum("1e4932", "1e4932"), Err(NotFinite));
    assert_eq!(sum("-1e4932", "-1e4932"), Err(NotFinite));
    assert_eq!(sum("1e4932", "-1e4932").as_deref(), Ok("0"));
}

#[test]
fn numbers_outside_the_80_bit_range_are_refused() {
    for text in [
        "1.189731495357231765053511589829488667967e4932",
        "1.2e4932",
        "1e5000",
        "1e99999999999999999999",
        "0x1p16384",
        "0x0.ffffffffffffffff8p16384",
        "1.822599765941237301264202966809709908e-4951",
        "1e-4951",
        "1e-99999999999999999999",
        "0x1p-16446",
        "0x1p-99999999999999999999",
    ] {
        assert_eq!(sum(text, "0"), Err(NotAFloat), "{text}");
    }
    for text in
        ["1.18973149535723176505e4932", "1.189731495357231765053511589829488667965e4932", "0x0.ffffffffffffffff7p16384"]
    {
        assert_eq!(sum(text, "0").map(|sum| sum.len()), Ok(4_933), "{text}");
    }
    for text in [
        "1.822599765941237301264202966809709909e-4951",
        "2e-4951",
        "0x1p-16445",
        "0x1.8p-16446",
        "0x1.00000000000000000000000000000000001p-16446",
    ] {
        assert_eq!(sum(text, "0").as_deref(), Ok("0"), "{text}");
    }
}

#[test]
fn long_texts_are_read_up_to_the_bound_of_redis() {
    let zeros = |count| "0".repeat(count);
    assert_eq!(sum(&(zeros(5_118) + "1"), "0").as_deref(), Ok("1"));
    assert_eq!(sum(&(zeros(5_119) + "1"), "0"), Err(NotAFloat));
    assert_eq!(sum(&format!("0.{}1e5001", zeros(5_000)), "0").as_deref(), Ok("1"));
    assert_eq!(sum(&format!("1{}e-5000", zeros(5_000)), "0").as_deref(), Ok("1"));
    assert_eq!(sum(&"1".repeat(5_119), "0"), Err(NotAFloat));
    let tiny = format!("{}e-4951", "7".repeat(5_000));
    assert_eq!(sum(&tiny, "-1e-4950").map(|sum| sum.len()), Ok(49 + 1 + 17));
    assert_eq!(sum("1e4931", "1e-4950").map(|sum| sum.len()), Ok(4_932));
}

#[test]
fn the_sums_of_integers_are_those_of_machine_integers() {
    let mut rng = SeededRng(7);
    for _ in 0..100_000 {
        let numbers = [(); 2].map(|()| i128::from(rng.next().cast_signed() >> rng.below(64)));
        let places = usize::try_from(rng.below(17)).expect("it is small");
        let [value, increment] = numbers.map(|number| format!("{number}e-{places}"));
        let total = numbers.iter().sum::<i128>();
        let digits = format!("{:0>width$}", total.unsigned_abs(), width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        let text = format!("{}{whole}.{fraction}", if total < 0 { "-" } else { "" });
        assert_eq!(sum(&value, &increment).as_deref(), Ok(text.trim_end_matches('0').trim_end_matches('.')));
    }
}

#[test]
fn any_sum_can_be_added_to() {
    let mut rng = SeededRng(8);
    for _ in 0..300_000 {
        let [value, increment] =
            [(); 2].map(|()| (0..rng.below(12)).map(|_| rng.pick(b"0123456789.-+eExXpPinfa0019")).collect::<Vec<u8>>());
        if let Ok(sum) = add(&value, &increment) {
            assert_eq!(add(&sum, b"0"), Ok(sum.clone()));
        }
    }
}
