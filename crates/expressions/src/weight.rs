//! A bound on the cost of a predicate, known before its evaluation.
//!
//! The interpreter cannot be interrupted, and it copies the request each time an expression reads the request. So the
//! weight of each expression is computed once, when it is parsed: its steps, its reads of the request, the functions
//! that it calls, and the same numbers for each element of its loops. The weight of the expression and the size of the
//! request give a bound on the cost. A predicate beyond the budget is not evaluated.

use cel::common::ast::{EntryExpr, Expr, IdedExpr};

/// The only variable of an expression.
pub(crate) const REQUEST: &str = "request";

/// The number of fields of `request`. A loop can iterate over them.
const FIELDS: u64 = 6;

/// The maximum cost of a predicate for one request, in steps of the interpreter: a few milliseconds.
pub(crate) const BUDGET: u64 = 1 << 18;

/// The number of bytes of text that count as one step, for functions that read text.
pub(crate) const BYTES_READ: u64 = 1024;
/// The number of bytes of text that count as one step of `matches`, which does more work per byte.
pub(crate) const BYTES_MATCHED: u64 = 16;

/// The size of the parts of a request that predicates can read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The number of headers and query parameters.
    pub parts: u64,
    /// The bytes of the headers, the query parameters, the path and the host.
    pub bytes: u64,
}

/// The error for a loop within a loop. The number of its steps would be the product of two numbers that a client
/// chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nested;

/// The cost of an evaluation, for requests of any size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    once: Cost,
    loops: Vec<Loop>,
}

/// A macro that loops: a quantifier such as `exists`, `map` or `filter`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Loop {
    range: Range,
    /// The cost of one element.
    body: Cost,
}

/// The maximum number of elements of a list: `requests` times the parts of a request, plus `elements` that are literals
/// in the expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Range {
    requests: u64,
    elements: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    steps: u64,
    /// The number of times that the request, or a list with as many elements, is copied.
    requests: u64,
    calls: u64,
    matches: u64,
}

impl Weight {
    /// Computes the weight of an expression, which must not have nested quantifiers.
    pub(crate) fn of(expression: &IdedExpr) -> Result<Self, Nested> {
        let mut weight = Self::default();
        weight.add(expression, None)?;
        Ok(weight)
    }

    /// Whether the expression may be evaluated for a request of this size.
    pub(crate) fn fits(&self, size: Size) -> bool {
        self.cost(size) <= BUDGET
    }

    /// Returns the maximum number of steps for a request of this size.
    pub(crate) fn cost(&self, size: Size) -> u64 {
        let each = self.loops.iter().map(|each| each.range.of(size).saturating_mul(each.body.of(size)));
        each.fold(self.once.of(size), u64::saturating_add)
    }

    /// Adds the cost of an expression. `looped` is the index of the loop that contains the expression.
    fn add(&mut self, expression: &IdedExpr, looped: Option<usize>) -> Result<(), Nested> {
        let cost = match looped {
            Some(looped) => &mut self.loops[looped].body,
            None => &mut self.once,
        };
        cost.steps += 1;
        match &expression.expr {
            Expr::Ident(name) if name == REQUEST => cost.requests += 1,
            Expr::Call(call) if call.func_name == "matches" => cost.matches += 1,
            Expr::Call(_) => cost.calls += 1,
            Expr::Comprehension(each) => {
                if looped.is_some() {
                    return Err(Nested);
                }
                let range = Range::of_list(&each.iter_range);
                let mut body = Cost::default();
                if matches!(each.accu_init.expr, Expr::List(_)) {
                    // Each step copies the list built so far.
                    body.requests += range.requests;
                    body.steps += range.elements;
                }
                self.loops.push(Loop { range, body });
                let looped = Some(self.loops.len() - 1);
                // These parts are evaluated once, even if the list is empty.
                for part in [&each.iter_range, &each.accu_init, &each.result] {
                    self.add(part, None)?;
                }
                for part in [&each.loop_cond, &each.loop_step] {
                    self.add(part, looped)?;
                }
                return Ok(());
            }
            _ => {}
        }
        parts(expression).try_for_each(|part| self.add(part, looped))
    }
}

impl Range {
    /// Computes the range of a list. A list that an expression builds has at most the elements of its parts.
    fn of_list(expression: &IdedExpr) -> Self {
        let own = match &expression.expr {
            Expr::Ident(name) if name == REQUEST => Self { requests: 1, elements: FIELDS },
            Expr::List(list) => Self { requests: 0, elements: list.elements.len() as u64 },
            Expr::Map(map) => Self { requests: 0, elements: map.entries.len() as u64 },
            Expr::Comprehension(each) => return Self::of_list(&each.iter_range),
            _ => Self::default(),
        };
        parts(expression).map(Self::of_list).fold(own, |sum, part| Self {
            requests: sum.requests + part.requests,
            elements: sum.elements + part.elements,
        })
    }

    fn of(self, size: Size) -> u64 {
        self.requests.saturating_mul(size.parts).saturating_add(self.elements)
    }
}

impl Cost {
    fn of(self, Size { parts, bytes }: Size) -> u64 {
        let each = [
            (self.steps, 1),
            (self.requests, parts),
            (self.calls, bytes / BYTES_READ),
            (self.matches, bytes / BYTES_MATCHED),
        ];
        each.iter().fold(0, |sum: u64, (count, cost)| sum.saturating_add(count.saturating_mul(*cost)))
    }
}

/// Returns the parts of an expression, but no parts of a loop, which `add` and `of_list` handle.
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
    use cel::Program;

    use super::*;

    fn fits(text: &str, parts: u64, bytes: u64) -> bool {
        let program = Program::compile(text).expect(text);
        Weight::of(program.expression()).expect(text).fits(Size { parts, bytes })
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
}
