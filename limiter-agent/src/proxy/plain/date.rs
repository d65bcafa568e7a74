//! The `Date` field, formatted once a second from the wall clock. A client can compare the date with other dates, so
//! the date must follow a change of the wall clock.

use std::{
    cell::RefCell,
    time::{Duration, SystemTime},
};

use weir_core::Time;

use crate::clock;

const FIELD: &[u8] = b"date: ";

/// The current date, formatted by one worker.
#[derive(Debug)]
pub(super) struct Date(RefCell<Written>);

#[derive(Debug)]
struct Written {
    line: Vec<u8>,
    /// The text is valid until this monotonic time.
    until: Time,
}

impl Date {
    pub(super) fn new() -> Self {
        Self(RefCell::new(Written { line: Vec::new(), until: Time::from_nanos(0) }))
    }

    /// A date that is valid until the given time.
    #[cfg(test)]
    pub(super) fn of(line: &str, until: Time) -> Self {
        Self(RefCell::new(Written { line: line.into(), until }))
    }

    /// Appends the field's line, and returns the time until which the line is valid. `now` is the monotonic time, from
    /// the same clock in all calls.
    pub(super) fn write(&self, now: Time, to: &mut Vec<u8>) -> Time {
        let written = &mut *self.0.borrow_mut();
        if now >= written.until {
            written.renew(now, clock::wall());
        }
        to.extend_from_slice(&written.line);
        written.until
    }
}

impl Written {
    fn renew(&mut self, now: Time, date: SystemTime) {
        let second = Duration::from_secs(1);
        let passed = date.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        self.until = now.saturating_add(second - Duration::from_nanos(passed.into()));
        self.line.clear();
        self.line.extend_from_slice(FIELD);
        self.line.extend_from_slice(httpdate::fmt_http_date(date).as_bytes());
        self.line.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_formatted_once_a_second() {
        let mut written = Written { line: Vec::new(), until: Time::from_nanos(0) };
        let date = SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_250);
        written.renew(Time::from_nanos(5_000_000_000), date);
        assert_eq!(written.line, b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        assert_eq!(written.until, Time::from_nanos(5_750_000_000));
    }

    #[test]
    fn the_date_is_the_systems() {
        let mut line = Vec::new();
        let before = clock::wall() - Duration::from_secs(1);
        Date::new().write(Time::from_nanos(1), &mut line);
        let text = str::from_utf8(&line).unwrap().strip_prefix("date: ").unwrap().trim_end();
        let date = httpdate::parse_http_date(text).unwrap();
        assert!(date >= before && date <= clock::wall(), "{text}");
    }
}
