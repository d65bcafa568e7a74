//! Parses resource quantities, and refuses values that the apiserver would refuse: injection must not make a pod fail
//! to start.

use std::str::FromStr;

/// A mebibyte.
pub(super) const MI: f64 = 1024.0 * 1024.0;

/// The smallest limit of memory that users can set, in bytes. An agent with few connections needs 11 MB, and a smaller
/// limit is most often a mistake, such as `100m`.
pub(super) const LEAST_MEMORY: f64 = 16.0 * MI;

/// Returns this limit for messages.
pub(super) fn least_memory() -> String {
    text("memory", LEAST_MEMORY)
}

/// A positive quantity: `100m`, `0.5`, `64Mi`, `1e3`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quantity {
    text: String,
    value: f64,
}

impl Quantity {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the value in cores or bytes.
    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// Returns true if this quantity is larger than the other one. Floating point is exact enough for the sizes of
    /// agents.
    pub(super) fn exceeds(&self, other: &Self) -> bool {
        self.value > other.value
    }
}

impl FromStr for Quantity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let value = amount(text).filter(|value| *value > 0.0).ok_or(())?;
        Ok(Self { text: text.to_owned(), value })
    }
}

/// Formats a value as Kubernetes does, rounded down to the resource's unit.
pub(super) fn text(resource: &str, value: f64) -> String {
    if resource == "cpu" {
        return format!("{}m", (value * 1000.0 + 1e-6).floor());
    }
    let bytes = value.floor();
    if bytes % MI == 0.0 { format!("{}Mi", bytes / MI) } else { format!("{bytes}") }
}

/// Returns a value rounded up to the resource's unit, as Kubernetes does.
pub(super) fn rounded_up(resource: &str, value: f64) -> f64 {
    if resource == "cpu" { (value * 1000.0 - 1e-6).ceil() / 1000.0 } else { (value - 1e-6).ceil() }
}

/// Compares two values, without the errors of floating point.
pub(super) fn same(one: f64, other: f64) -> bool {
    (one - other).abs() <= one.abs() * 1e-9
}

/// Returns the value of a quantity, including zero, or `None` if the text is not a quantity.
pub(super) fn amount(text: &str) -> Option<f64> {
    let number = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, suffix) = text.split_at(number);
    let decimal = |power: i32| format!("{number}e{power}").parse::<f64>().ok();
    let binary = |power: i32| Some(number.parse::<f64>().ok()? * 1024f64.powi(power));
    let value = match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            // No node has a resource that needs an exponent above two digits.
            let plain = (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
            decimal(exponent.parse().ok().filter(|_| plain)?)
        }
    };
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
#[path = "quantity_fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_quantity() {
        for good in ["1", "100m", "0.5", ".5", "5.", "64Mi", "1e3", "1E3", "2E", "12E-3", "1e+2", "100u", "1k"] {
            assert_eq!(good.parse::<Quantity>().map(|quantity| quantity.text), Ok(good.to_owned()), "{good}");
        }
        for bad in
            ["", "0", "0m", "-1", "+1", "1 Mi", "1mi", "64MB", "Mi", "1.2.3", "1e", "1e999", "1e1.5", "inf", "NaN"]
        {
            assert_eq!(bad.parse::<Quantity>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn quantities_are_compared_by_value() {
        for (less, more) in [("64Mi", "128Mi"), ("999m", "1"), ("1M", "1Mi"), ("100m", "0.2"), ("1e3", "1Ki")] {
            let [less, more] = [less, more].map(|text| text.parse::<Quantity>().unwrap());
            assert!(more.exceeds(&less) && !less.exceeds(&more), "{less:?} {more:?}");
        }
        for (one, same) in [("1", "1000m"), ("912", "9.12E2")] {
            let [one, same] = [one, same].map(|text| text.parse::<Quantity>().unwrap());
            assert!(!one.exceeds(&same) && !same.exceeds(&one), "{one:?} {same:?}");
        }
    }
}
