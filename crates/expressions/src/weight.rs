//! A bound on the cost of running a predicate, known before it runs.
//!
//! The interpreter cannot be stopped, and it copies the request each time an expression reads it. So each expression is
//! weighed once, when it is parsed: its steps, how often it reads the request, the functions that it calls, and the
//! same for each element of its loops. The weight of the expression and the size of the request give a bound on the cost.
//! A predicate beyond the budget is not run.

use cel::common::ast::{EntryExpr, Expr, IdedExpr};

/// The one variable that an expression has.
pub(crate) const REQUEST: &str = "request";

/// How many fields it has itself, which a loop may pass through.
const FIELDS: u64 = 6;

/// The most that a predicate may cost for one request, in steps of the interpreter: some milliseconds.
pub(crate) const BUDGET: u64 = 1 << 18;

/// How many bytes of text count as one step, for functions that read texts and for `matches`, which does more work per
/// byte.
pub(crate) const BYTES_READ: u64 = 1024;
pub(crate) const BYTES_MATCHED: u64 = 16;

/// How large a request is, as predicates see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The number of headers and query parameters.
    pub parts: u64,
    /// Their bytes, with those of the path and the host.
    pub bytes: u64,
}

/// A loop within a loop: its bound would be the product of what a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nested;

/// What running an expression costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    once: Cost,
    loops: Vec<Loop>,
}

/// A macro that loops: a quantifier such as `exists`, or `map` or `filter`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Loop {
    range: Range,
    /// The cost of one element.
    body: Cost,
}

/// The largest number of elements: `requests` times the parts of a request, plus `elements` that are written in the
/// expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Range {
    requests: u64,
    elements: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    steps: u64,
    /// How often it reads the request, or copies a list that may have as many elements.
    requests: u64,
    calls: u64,
    matches: u64,
}

impl Weight {
    /// The weight of an expression. It must not have nested quantifiers.
    pub(crate) fn of(expression: &IdedExpr) -> Result<Self, Nested> {
        let mut weight = Self::default();
        weight.add(expression, None)?;
        Ok(weight)
    }

    /// Whether the expression may run for a request of this size.
    pub(crate) fn fits(&self, size: Size) -> bool {
        self.cost(size) <= BUDGET
    }

    /// The most steps for a request of this size.
    pub(crate) fn cost(&self, size: Size) -> u64 {
        let each = self.loops.iter().map(|each| each.range.of(size).saturating_mul(each.body.of(size)));
        each.fold(self.once.of(size), u64::saturating_add)
    }

    /// `looped` is the loop that the expression is a part of.
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
                    // Each step copies the list that was built so far.
                    body.requests += range.requests;
                    body.steps += range.elements;
                }
                self.loops.push(Loop { range, body });
                let looped = Some(self.loops.len() - 1);
                // The result is asked for once, also of an empty list.
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
    /// A list that an expression builds has no more elements than its parts.
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

/// The parts of an expression. A loop has none here: `add` and `of_list` handle it.
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
