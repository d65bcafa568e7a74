//! Watches one object of the apiserver by its name.

use std::{fmt::Debug, future::ready, mem};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource,
    runtime::watcher::{Config, Event},
};
use serde::de::DeserializeOwned;

use super::watch::{warn, watch};

/// Returns the object whenever it changes, or `None` while it does not exist.
pub(crate) fn object<K>(api: &Api<K>, name: &str) -> impl Stream<Item = Option<K>> + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watch(api.clone(), Config::default().fields(&format!("metadata.name={name}")));
    let mut is_listed = false;
    events.filter_map(move |event| {
        ready(match event {
            Ok(Event::InitApply(object)) => {
                is_listed = true;
                Some(Some(object))
            }
            Ok(Event::Apply(object)) => Some(Some(object)),
            Ok(Event::Delete(_)) => Some(None),
            Ok(Event::InitDone) => (!mem::take(&mut is_listed)).then_some(None),
            // `watch` leaves it out.
            Ok(Event::Init) => None,
            Err(error) => {
                // The next listing starts again.
                is_listed = false;
                warn(&K::kind(&()), &error);
                None
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io};

    use bytes::Bytes;
    use futures::{StreamExt, stream, stream::BoxStream};
    use http::{Request, Response};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use k8s_openapi::api::core::v1::Service;
    use kube::{Client, client::Body};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_object_is_shown_until_it_is_deleted() {
        let apiserver = tower::service_fn(|request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            assert!(query.contains("fieldSelector=metadata.name%3Dweb"), "{query}");
            let service = r#"{"metadata": {"name": "web", "resourceVersion": "8"}}"#;
            let text = if query.contains("watch=true") {
                format!(r#"{{"type": "DELETED", "object": {service}}}"#) + "\n"
            } else {
                format!(r#"{{"metadata": {{"resourceVersion": "7"}}, "items": [{service}]}}"#)
            };
            let text = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(text)))]);
            let body: BoxStream<'_, _> =
                if query.contains("watch=true") { text.chain(stream::pending()).boxed() } else { text.boxed() };
            async { Ok::<_, io::Error>(Response::new(StreamBody::new(body))) }
        });
        let services: Api<Service> = Api::all(Client::new(apiserver, "default"));
        let shown = object(&services, "web").map(|service| service.and_then(|service| service.metadata.name));
        assert_eq!(shown.take(2).collect::<Vec<_>>().await, [Some("web".to_owned()), None]);
    }
}
