//! Access to the inner service. All services of this crate use this macro.

/// Implements `get_ref`, `get_mut` and `into_inner` for a service.
macro_rules! inner_service {
    ($service:ident<S $(, $other:ident)*>) => {
        impl<S $(, $other)*> $service<S $(, $other)*> {
            /// The inner service.
            ///
            /// ```
            /// use tower::Layer;
            /// use weir_tower::DeadlineLayer;
            ///
            /// let layer = DeadlineLayer::with_errors(std::time::Duration::from_secs(1));
            /// assert_eq!(layer.layer("inner").get_ref(), &"inner");
            /// ```
            pub const fn get_ref(&self) -> &S {
                &self.inner
            }

            /// The inner service. A request that is sent to it passes no limit.
            ///
            /// ```
            /// use tower::Layer;
            /// use weir_tower::DeadlineLayer;
            ///
            /// let layer = DeadlineLayer::with_errors(std::time::Duration::from_secs(1));
            /// let mut service = layer.layer("inner");
            /// *service.get_mut() = "replaced";
            /// assert_eq!(service.into_inner(), "replaced");
            /// ```
            pub const fn get_mut(&mut self) -> &mut S {
                &mut self.inner
            }

            /// The inner service, without the layer.
            ///
            /// ```
            /// use tower::Layer;
            /// use weir_tower::DeadlineLayer;
            ///
            /// let layer = DeadlineLayer::with_errors(std::time::Duration::from_secs(1));
            /// assert_eq!(layer.layer("inner").into_inner(), "inner");
            /// ```
            pub fn into_inner(self) -> S {
                self.inner
            }
        }
    };
}

pub(crate) use inner_service;
