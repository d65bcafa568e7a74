//! Flow control (RFC 9113, section 5.2 and 6.9): what may be sent, and what the peer may send.

use crate::error::{Fault, Reason};
use crate::frame::MAX_31;

/// What everybody may send before anything was said.
pub(crate) const INITIAL: u32 = 65_535;

const OVERRUN: Fault = Fault::new(Reason::FLOW_CONTROL_ERROR, "more was sent than the window allows");
const OVERFLOW: Fault = Fault::new(Reason::FLOW_CONTROL_ERROR, "a window is larger than 2^31-1");

/// How much may be sent. Less than nothing after the peer has taken back what it had allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow(i64);

impl SendWindow {
    pub(crate) fn new(size: u32) -> Self {
        Self(size.into())
    }

    pub(crate) fn left(self) -> u32 {
        u32::try_from(self.0).unwrap_or(0)
    }

    pub(crate) fn take(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.left());
        self.0 -= i64::from(bytes);
    }

    /// WINDOW_UPDATE.
    pub(crate) fn grant(&mut self, increment: u32) -> Result<(), Fault> {
        if increment == 0 {
            return Err(Fault::protocol("a window grows by nothing"));
        }
        self.shift(increment.into())
    }

    /// SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) fn resize(&mut self, from: u32, to: u32) -> Result<(), Fault> {
        self.shift(i64::from(to) - i64::from(from))
    }

    fn shift(&mut self, by: i64) -> Result<(), Fault> {
        let left = self.0 + by;
        if left > MAX_31.into() {
            return Err(OVERFLOW);
        }
        self.0 = left;
        Ok(())
    }
}

/// How much the peer may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    left: u32,
    size: u32,
}

impl ReceiveWindow {
    pub(crate) fn new(size: u32) -> Self {
        Self { left: size, size }
    }

    /// Something came, with its padding.
    pub(crate) fn take(&mut self, bytes: u32) -> Result<(), Fault> {
        self.left = self.left.checked_sub(bytes).ok_or(OVERRUN)?;
        Ok(())
    }

    /// What to allow again; nothing while half of it is left: a short answer costs no frame.
    pub(crate) fn refill(&mut self) -> Option<u32> {
        if self.left > self.size / 2 {
            return None;
        }
        let increment = self.size - self.left;
        self.left = self.size;
        Some(increment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_shrink_below_nothing_and_grows_to_its_bound() {
        let mut window = SendWindow::new(100);
        window.take(100);
        assert_eq!(window.left(), 0);
        window.resize(100, 10).unwrap();
        assert_eq!(window.left(), 0);
        window.grant(90).unwrap();
        assert_eq!(window.left(), 0, "it was at -90");
        window.grant(1).unwrap();
        assert_eq!(window.left(), 1);
        window.grant(MAX_31 - 1).unwrap();
        assert_eq!(window.left(), MAX_31);
        assert_eq!(window.grant(1), Err(OVERFLOW));
        assert_eq!(window.resize(10, 11), Err(OVERFLOW));
        assert_eq!(window.grant(0).unwrap_err().reason, Reason::PROTOCOL_ERROR);
        assert_eq!(window.left(), MAX_31);
    }

    #[test]
    fn what_the_peer_may_send_is_given_back_by_the_half() {
        let mut window = ReceiveWindow::new(100);
        window.take(49).unwrap();
        assert_eq!(window.refill(), None);
        window.take(1).unwrap();
        assert_eq!(window.refill(), Some(50));
        window.take(100).unwrap();
        assert_eq!(window.take(1), Err(OVERRUN));
        assert_eq!(window.refill(), Some(100));
    }
}
