//! The cost of a request.

/// Finds the cost of a request. A closure from a request to a `u64` is one.
///
/// ```
/// use http::Request;
/// use weir_tower::CostExtractor;
///
/// /// One unit for each item of a batch.
/// fn items(request: &Request<Vec<u32>>) -> u64 {
///     request.body().len() as u64
/// }
///
/// assert_eq!(items.cost(&Request::new(vec![1, 2, 3])), 3);
/// ```
pub trait CostExtractor<Request> {
    /// Returns the cost. A cost of 0 charges nothing, and is neither refused nor made to wait.
    ///
    /// ```
    /// use weir_tower::CostExtractor;
    ///
    /// let length = |text: &String| text.len() as u64;
    /// assert_eq!(length.cost(&String::from("four")), 4);
    /// ```
    fn cost(&self, request: &Request) -> u64;
}

/// A cost of one for each request.
///
/// ```
/// use weir_tower::{CostExtractor, UnitCost};
///
/// assert_eq!(UnitCost.cost(&"a request"), 1);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitCost;

impl<Request> CostExtractor<Request> for UnitCost {
    #[inline]
    fn cost(&self, _: &Request) -> u64 {
        1
    }
}

impl<F: Fn(&Request) -> u64, Request> CostExtractor<Request> for F {
    #[inline]
    fn cost(&self, request: &Request) -> u64 {
        self(request)
    }
}
