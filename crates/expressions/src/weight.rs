//! A bound on the cost of a predicate for one request, known before its evaluation.
//!
//! The interpreter cannot be interrupted, and it copies values: each field that an expression reads, each argument of a
//! function, and each list that a loop builds. An expression can also build values that are much larger than the
//! request. So this module follows the maximum size of each value through the expression, beginning with the size of
//! the request. It must never predict less than an evaluation takes. The prediction does not include the searches for
//! regular expressions without a table: `language.rs` counts these searches when they happen, because their time
//! depends on their text.

use std::mem;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue,
    operators::{INDEX, OPT_INDEX, OPT_SELECT},
};

use crate::cost::{READ, STEP};

/// The only variable of an expression.
pub(crate) const REQUEST: &str = "request";

/// The number of fields of `request`. A loop can iterate over them.
const FIELDS: u64 = 6;

/// The maximum memory of all values of one evaluation, in bytes.
const MEMORY: u64 = 8 * 1024 * 1024;

/// The memory of a value in addition to its text, in bytes.
const VALUE: u64 = 128;

/// The length of a number as a text, in bytes.
const LONGEST_NUMBER: u64 = 400;

/// The size of an ordinary request. A predicate that does not fit the budget for it is of no use.
pub(crate) const ORDINARY: Size = Size { parts: 32, bytes: 4096 };

/// The size of the parts of a request that predicates can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The number of headers and query parameters.
    pub parts: u64,
    /// The bytes of the headers, the query parameters, the path, the host and the method.
    pub bytes: u64,
}

/// The maximum size of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// The levels of lists and maps. 0 for a text, a number or a boolean.
    depth: u64,
    /// The elements of the longest list or map in the value.
    elements: u64,
    /// The bytes of the longest text in the value.
    text: u64,
    /// The number of all values in the value, including itself.
    values: u64,
    /// The bytes of all texts in the value.
    bytes: u64,
}

/// The cost of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    work: u64,
    /// The bytes of all values, because many of them exist at the same time.
    memory: u64,
}

/// An evaluation with sizes in place of values.
struct Evaluation<'a> {
    size: Size,
    /// The variables of the enclosing loops.
    variables: Vec<(&'a str, Extent)>,
    cost: Cost,
}

/// Returns the maximum cost of an evaluation for a request of this size. The cost of an evaluation that takes too much
/// memory is [`u64::MAX`].
pub(crate) fn cost(expression: &IdedExpr, size: Size) -> u64 {
    let mut evaluation = Evaluation { size, variables: Vec::new(), cost: Cost::default() };
    evaluation.value(expression);
    let Cost { work, memory } = evaluation.cost;
    if memory > MEMORY { u64::MAX } else { work }
}

/// Whether the expression has a loop within a loop. The number of its steps would be the product of two numbers that a
/// client chooses.
pub(crate) fn has_nested_loops(expression: &IdedExpr, is_looped: bool) -> bool {
    let Expr::Comprehension(each) = &expression.expr else {
        return parts(expression).any(|part| has_nested_loops(part, is_looped));
    };
    let outside = [&each.iter_range, &each.accu_init, &each.result];
    is_looped
        || outside.iter().any(|part| has_nested_loops(part, false))
        || [&each.loop_cond, &each.loop_step].iter().any(|part| has_nested_loops(part, true))
}

/// Whether a call is an operator such as `_+_`, or a step of a macro such as `@not_strictly_false`. No other call has a
/// name with such signs. A name can begin with a dot.
pub(crate) fn is_operator(name: &str) -> bool {
    !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
}

impl<'a> Evaluation<'a> {
    /// Adds the cost of an expression, and returns the size of its value.
    fn value(&mut self, expression: &'a IdedExpr) -> Extent {
        let value = match &expression.expr {
            // A variable is not copied.
            Expr::Ident(name) => {
                self.add(STEP, 0);
                return self.variable(name);
            }
            Expr::Literal(LiteralValue::String(text)) => Extent::of_text(text.inner().len() as u64),
            Expr::Literal(LiteralValue::Bytes(bytes)) => Extent::of_text(bytes.inner().len() as u64),
            Expr::Select(select) if select.test => {
                self.value(&select.operand);
                Extent::SCALAR
            }
            Expr::Select(select) => match self.field(&select.operand, &select.field) {
                Some(field) => field,
                None => self.value(&select.operand).element(),
            },
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(each) => self.repeated(each),
            Expr::List(_) | Expr::Map(_) => {
                let elements: Vec<Extent> = parts(expression).map(|part| self.value(part)).collect();
                Extent::list_of(&elements)
            }
            Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => Extent::SCALAR,
        };
        self.add(STEP.saturating_add(value.copy()), value.memory());
        value
    }

    fn add(&mut self, work: u64, memory: u64) {
        self.cost.work = self.cost.work.saturating_add(work);
        self.cost.memory = self.cost.memory.saturating_add(memory);
    }

    fn variable(&self, name: &str) -> Extent {
        let own = self.variables.iter().rev().find(|(known, _)| *known == name);
        own.map_or_else(|| Extent::of_request(self.size), |(_, value)| *value)
    }

    /// Returns the size of a field of the request, whose copy does not contain the other fields. `None` if the operand
    /// is not the request.
    fn field(&self, operand: &IdedExpr, name: &str) -> Option<Extent> {
        let is_request = matches!(&operand.expr, Expr::Ident(variable) if variable == REQUEST)
            && self.variables.iter().all(|(known, _)| *known != REQUEST);
        is_request.then(|| match name {
            "query" | "headers" => Extent::of_fields(self.size),
            _ => Extent::of_text(self.size.bytes),
        })
    }

    fn call(&mut self, call: &'a CallExpr) -> Extent {
        let (mut first, mut all) = (None, Extent::NOTHING);
        for part in call.target.as_deref().into_iter().chain(&call.args) {
            let value = self.value(part);
            first.get_or_insert(value);
            all = all.and(value);
        }
        let first = first.unwrap_or(Extent::SCALAR);
        self.add(all.copy(), 0);
        let is_function = !is_operator(&call.func_name);
        if is_function {
            // The library copies the arguments of a function.
            self.add(all.bytes.saturating_mul(READ), all.memory());
        }
        match call.func_name.as_str() {
            "_+_" | "_?_:_" | "max" | "min" | OPT_SELECT => all,
            INDEX | OPT_INDEX => first.element(),
            "matches" => {
                self.add(first.bytes.saturating_mul(READ), 0);
                Extent::SCALAR
            }
            // A byte that is not UTF-8 becomes a character of three bytes.
            "string" => Extent::of_text(all.bytes.saturating_mul(3).saturating_add(LONGEST_NUMBER)),
            "bytes" => Extent::of_text(all.bytes),
            name if is_function || SCALAR_OPERATORS.contains(&name) => Extent::SCALAR,
            _ => all,
        }
    }

    /// Adds the cost of a macro that loops, such as `exists` or `map`.
    fn repeated(&mut self, each: &'a ComprehensionExpr) -> Extent {
        let range = self.value(&each.iter_range);
        self.value(&each.accu_init);
        let is_list = matches!(each.accu_init.expr, Expr::List(_));
        let before = mem::take(&mut self.cost);
        let start = if is_list { Extent::list_of(&[]) } else { Extent::SCALAR };
        self.variables.push((each.iter_var.as_str(), range.element()));
        self.variables.push((each.accu_var.as_str(), start));
        self.value(&each.loop_cond);
        let step = self.value(&each.loop_step);
        self.variables.truncate(self.variables.len() - 2);
        self.add(STEP.saturating_add(range.element().copy()), range.element().memory());
        let once = mem::replace(&mut self.cost, before);
        self.add(once.work.saturating_mul(range.elements), once.memory);
        let built = if is_list { step.times(range.elements) } else { Extent::SCALAR };
        if is_list {
            // Each step copies the list twice, and the list grows in each step. So the two copies take as long as one of
            // the final list, on average. Three lists exist at the same time.
            let steps = range.elements.saturating_add(1);
            self.add(built.copy().saturating_mul(steps), built.memory().saturating_mul(3));
        }
        self.variables.push((each.accu_var.as_str(), built));
        let result = self.value(&each.result);
        self.variables.pop();
        result
    }
}

/// The operators whose value is a number or a boolean.
const SCALAR_OPERATORS: [&str; 16] = [
    "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_&&_", "_||_", "!_", "-_", "_-_", "_*_", "_/_", "_%_", "@in",
    "@not_strictly_false",
];

impl Extent {
    const NOTHING: Self = Self { depth: 0, elements: 0, text: 0, values: 0, bytes: 0 };
    const SCALAR: Self = Self { values: 1, ..Self::NOTHING };

    fn of_text(bytes: u64) -> Self {
        Self { text: bytes, bytes, ..Self::SCALAR }
    }

    /// The size of the headers or of the query.
    fn of_fields(Size { parts, bytes }: Size) -> Self {
        // The library also copies each name.
        let values = parts.saturating_mul(2).saturating_add(1);
        Self { depth: 1, elements: parts, text: bytes, values, bytes }
    }

    fn of_request(size: Size) -> Self {
        let fields = Self::of_fields(size);
        Self {
            depth: 2,
            elements: fields.elements.max(FIELDS),
            values: fields.values.saturating_add(FIELDS + 1),
            ..fields
        }
    }

    /// The size of a list or a map of these values.
    fn list_of(elements: &[Self]) -> Self {
        let most = |part: fn(&Self) -> u64| elements.iter().map(part).max().unwrap_or_default();
        let sum = |part: fn(&Self) -> u64| elements.iter().map(part).fold(0, u64::saturating_add);
        Self {
            depth: most(|it| it.depth).saturating_add(1),
            elements: most(|it| it.elements).max(elements.len() as u64),
            text: most(|it| it.text),
            values: sum(|it| it.values).saturating_add(1),
            bytes: sum(|it| it.bytes),
        }
    }

    /// The size of the sum of two values, or of one of them.
    fn and(self, other: Self) -> Self {
        let are_lists = self.depth.min(other.depth) > 0;
        Self {
            depth: self.depth.max(other.depth),
            elements: self.elements.saturating_add(other.elements),
            text: if are_lists { self.text.max(other.text) } else { self.text.saturating_add(other.text) },
            values: self.values.saturating_add(other.values),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// The size of a list that a loop builds with so many steps.
    fn times(self, steps: u64) -> Self {
        Self {
            elements: self.elements.saturating_mul(steps),
            values: self.values.saturating_mul(steps).saturating_add(1),
            bytes: self.bytes.saturating_mul(steps),
            ..self
        }
    }

    /// The size of a part of a list or a map.
    fn element(self) -> Self {
        if self.depth > 1 { Self { depth: self.depth - 1, ..self } } else { Self::of_text(self.text) }
    }

    /// The cost of a copy.
    fn copy(self) -> u64 {
        self.values.saturating_mul(STEP).saturating_add(self.bytes)
    }

    /// The memory in bytes.
    fn memory(self) -> u64 {
        self.values.saturating_mul(VALUE).saturating_add(self.bytes)
    }
}

/// Returns the parts of an expression, but no parts of a loop.
fn parts(expression: &IdedExpr) -> Box<dyn Iterator<Item = &IdedExpr> + '_> {
    match &expression.expr {
        Expr::Select(select) => Box::new(std::iter::once(&*select.operand)),
        Expr::Call(call) => Box::new(call.target.as_deref().into_iter().chain(&call.args)),
        Expr::List(list) => Box::new(list.elements.iter()),
        Expr::Map(map) => Box::new(map.entries.iter().flat_map(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
            EntryExpr::StructField(_) => vec![],
        })),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cost::BUDGET, predicate};

    fn fits(text: &str, parts: u64, bytes: u64) -> bool {
        predicate(text).expect(text).cost(Size { parts, bytes }) <= BUDGET
    }

    #[test]
    fn what_takes_long_for_a_large_request_does_not_fit() {
        for text in [
            "request.query.exists(k, k == 'x' && 'x' in request.headers)",
            "request.query.exists(k, request.path.matches('^/a+$'))",
            "request.query.map(k, k).size() > 3",
            "request.query.filter(k, k == 'x') == []",
            "size(request.query.map(k, k) + request.query.map(k, k)) > 1",
        ] {
            assert!(fits(text, 30, 2_000), "{text}");
            assert!(!fits(text, 6_000, 12_000), "{text}");
        }
        let many = vec!["'x' in request.query"; 40].join(" || ");
        assert!(fits(&many, 100, 8_000) && !fits(&many, 10_000, 60_000));
        for text in ["request.path.startsWith('/api')", "['/a', '/b'].exists(p, request.path.startsWith(p))"] {
            assert!(fits(text, 6_000, 60_000), "{text}");
        }
        assert!(!fits("request.path == ''", u64::MAX, u64::MAX));
    }

    /// What users write runs for large requests, too.
    #[test]
    fn ordinary_expressions_fit() {
        for text in [
            "request.headers.exists(h, request.headers[h].matches('(?i)(sqlmap|nikto|nmap)'))",
            "request.headers.filter(h, h.startsWith('x-')).exists(h, request.headers[h].matches('^[0-9]+$'))",
            r"request.headers['user-agent'].matches('\\bcurl\\b')",
            r"request.query.q.matches('^\\w{1,20}$')",
            "request.query.map(k, request.query[k]).exists(v, v.contains('..'))",
        ] {
            assert!(fits(text, 60, 8_000), "{text}");
        }
    }
}
