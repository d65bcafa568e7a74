//! The values of a request that predicates can use.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Value,
    objects::{Key, Map},
};
use weir_expressions::language;

use super::{headers::Headers, query};

/// The only variable of an expression.
const REQUEST: &str = "request";

/// The functions of the language, built once because that is costly.
static LANGUAGE: LazyLock<Context<'static>> = LazyLock::new(language);

/// The values of one request that an expression can use. They are built once for all expressions, because the
/// interpreter copies its input.
pub(super) struct Facts(Context<'static>);

/// The parts of a request from which the values are built.
pub(super) struct Parts<'a> {
    pub(super) method: &'a str,
    pub(super) host: &'a str,
    /// The path in its normal form.
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    pub(super) headers: Headers<'a>,
    pub(super) client_ip: IpAddr,
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Facts")
    }
}

impl Facts {
    /// Builds the values of a request. `query` contains the first of several parameters with one name. In `headers`,
    /// the values of one name are joined with `, `, as in RFC 9110 section 5.2. Bytes that are not UTF-8 are replaced.
    pub(super) fn of(request: &Parts<'_>) -> Self {
        let mut parameters = HashMap::new();
        for (name, value) in query::pairs(request.query) {
            parameters.entry(key(&name)).or_insert_with(|| text(&value));
        }
        let mut joined: HashMap<String, String> = HashMap::new();
        for (name, value) in request.headers.iter() {
            let value = String::from_utf8_lossy(value);
            let known = joined.entry(name.to_ascii_lowercase()).and_modify(|known| {
                known.push_str(", ");
                known.push_str(&value);
            });
            known.or_insert_with(|| value.clone().into_owned());
        }
        let headers = joined.into_iter().map(|(name, value)| (Key::from(name), Value::from(value))).collect();
        let parts = [
            ("method", Value::from(request.method)),
            ("host", Value::from(request.host.to_ascii_lowercase())),
            ("path", Value::from(request.path)),
            ("query", map(parameters)),
            ("headers", map(headers)),
            ("clientIP", Value::from(request.client_ip.to_string())),
        ];
        let mut context = LANGUAGE.new_inner_scope();
        let parts = map(parts.into_iter().map(|(name, value)| (Key::from(name), value)).collect());
        context.add_variable_from_value(REQUEST, parts);
        Self(context)
    }

    /// Returns the input of the interpreter.
    pub(super) fn context(&self) -> &Context<'static> {
        &self.0
    }
}

fn map(entries: HashMap<Key, Value>) -> Value {
    Value::Map(Map { map: Arc::new(entries) })
}

fn key(bytes: &[u8]) -> Key {
    Key::from(String::from_utf8_lossy(bytes).into_owned())
}

fn text(bytes: &[u8]) -> Value {
    Value::from(String::from_utf8_lossy(bytes).into_owned())
}
