//! The drawing in `machine.rs` is the machine: its arrows, and what it lists as going along several at once, are
//! exactly what `step` does. A test of Python holds the drawing of docs/backup-lifecycle.md to it.

use std::collections::{BTreeMap, BTreeSet};

use super::machine::{Event, Phase, Reason, State, step};
use crate::agreement::Ruling;

const SOURCE: &str = include_str!("machine.rs");
const PHASES: [&str; 6] = ["Reserved", "Pending", "Committed", "Draining", "Quarantined", "Gone"];
const START: &str = "reserve";

type Arrow = (&'static str, &'static str);

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Reserved => "Reserved",
        Phase::Pending => "Pending",
        Phase::Committed => "Committed",
        Phase::Draining(_) => "Draining",
        Phase::Quarantined(_) => "Quarantined",
        Phase::Gone(_) => "Gone",
    }
}

/// What stands over an arrow that an event goes along.
fn label(event: Event) -> &'static [&'static str] {
    match event {
        Event::Bound => &["bind"],
        Event::ParentFound => &[],
        Event::ParentSettled => &["landed on all ranks, parents first"],
        Event::RolledBack(_) | Event::Ruled(Ruling::Failed) => &["rolled back"],
        Event::Ruled(Ruling::Landed) => &["landed on all ranks, parents first", "ended on all ranks", "ended"],
        Event::Ruled(Ruling::Drained) => &["ended on all ranks", "ended"],
        Event::Ruled(Ruling::Quarantined) => &["stuck"],
    }
}

/// Every change of phase that any sequence of events can make, with the labels of the events that make it.
fn made() -> BTreeMap<Arrow, BTreeSet<&'static str>> {
    let rulings = [Ruling::Landed, Ruling::Failed, Ruling::Drained, Ruling::Quarantined].map(Event::Ruled);
    let reasons = Reason::ALL.map(|(_, reason)| Event::RolledBack(reason));
    let others = [Event::Bound, Event::ParentFound, Event::ParentSettled];
    let events: Vec<Event> = rulings.into_iter().chain(reasons).chain(others).collect();
    let mut left: Vec<State> =
        [true, false].into_iter().flat_map(|waits| [State::reserved(waits), State::late(waits)]).collect();
    let mut seen: BTreeSet<State> = left.iter().copied().collect();
    let mut made: BTreeMap<Arrow, BTreeSet<&str>> = BTreeMap::new();
    while let Some(state) = left.pop() {
        for &event in &events {
            let (next, _) = step(state, event);
            let (from, to) = (name(state.phase), name(next.phase));
            if from != to {
                made.entry((from, to)).or_default().extend(label(event));
            }
            if seen.insert(next) {
                left.push(next);
            }
        }
    }
    made
}

/// The lines of the header of the machine.
fn header() -> impl Iterator<Item = &'static str> {
    SOURCE.lines().map_while(|line| line.strip_prefix("//!")).map(|line| line.strip_prefix(' ').unwrap_or(line))
}

/// The drawing: a character for each place.
fn drawing() -> Vec<Vec<char>> {
    header()
        .skip_while(|line| *line != "```text")
        .skip(1)
        .take_while(|line| *line != "```")
        .map(|line| line.chars().collect())
        .collect()
}

/// The names in a line, each with the places that it takes.
fn names(line: &[char]) -> Vec<(&'static str, std::ops::Range<usize>)> {
    let word = |start: usize| line[start..].iter().take_while(|it| it.is_alphabetic()).collect::<String>();
    let begins = |&start: &usize| line[start].is_alphabetic() && (start == 0 || !line[start - 1].is_alphabetic());
    let known = |start: usize| {
        let name = PHASES.into_iter().chain([START]).find(|&name| name == word(start))?;
        Some((name, start..start + name.chars().count()))
    };
    (0..line.len()).filter(begins).filter_map(known).collect()
}

/// The name that a line leads to which goes up from a place.
fn above(drawing: &[Vec<char>], line: usize, column: usize) -> &'static str {
    let mut up = line - 1;
    while drawing[up].get(column) == Some(&'│') {
        up -= 1;
    }
    let found = names(&drawing[up]).into_iter().find(|(_, places)| places.contains(&column));
    found.unwrap_or_else(|| panic!("line {line}, column {column} of the drawing leads to nothing")).0
}

/// The arrows of the drawing, each with its label.
fn drawn() -> BTreeMap<Arrow, String> {
    let drawing = drawing();
    let mut drawn = BTreeMap::new();
    for (number, line) in drawing.iter().enumerate() {
        let names = names(line);
        let (mut from, mut start) = (None, 0);
        for (to, end) in
            names.iter().map(|(name, places)| (Some(*name), places.clone())).chain([(None, line.len()..line.len())])
        {
            let between = &line[start..end.start];
            let text: String = between.iter().filter(|it| !"─►└┴┘│".contains(**it)).collect();
            let text = text.trim().to_owned();
            let mut sources: Vec<&str> = from.into_iter().collect();
            let mut target = to.filter(|_| between.contains(&'►'));
            for (column, it) in (start..).zip(between) {
                match it {
                    '└' | '┴' => sources.push(above(&drawing, number, column)),
                    '┘' => target = Some(above(&drawing, number, column)),
                    _ => {}
                }
            }
            if let Some(target) = target {
                drawn.extend(sources.into_iter().map(|source| ((source, target), text.clone())));
            }
            (from, start) = (to, end.end);
        }
    }
    drawn
}

/// What the header lists as done at once: rows of a table that begin with "`From` to `To`".
fn at_once() -> BTreeSet<Arrow> {
    let phase = |text: &str| PHASES.into_iter().find(|&phase| phase == text).expect("a phase");
    let rows = header()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .filter(|(pair, _)| pair.contains("` to `"));
    rows.map(|(pair, _)| pair.split_once("` to `").expect("looked for"))
        .map(|(from, to)| (phase(from), phase(to)))
        .collect()
}

/// Whether arrows lead from one phase to another.
fn is_chain(drawn: &BTreeMap<Arrow, String>, (from, to): Arrow) -> bool {
    drawn.keys().filter(|arrow| arrow.0 == from).any(|&(_, next)| next == to || is_chain(drawn, (next, to)))
}

#[test]
fn the_machine_does_what_is_drawn_and_nothing_else() {
    let (mut drawn, made, at_once) = (drawn(), made(), at_once());
    assert_eq!(drawn.remove(&(START, name(State::reserved(false).phase))), Some(String::new()));
    assert_eq!(drawn.len(), 7, "{drawn:?}");
    for (arrow, text) in &drawn {
        let labels = made.get(arrow).unwrap_or_else(|| panic!("{arrow:?} is drawn, and never happens"));
        assert!(labels.contains(text.as_str()), "{arrow:?} is said to be {text:?}, and is {labels:?}");
    }
    for arrow in &at_once {
        assert!(made.contains_key(arrow), "{arrow:?} is listed, and never happens");
        assert!(
            !drawn.contains_key(arrow) && is_chain(&drawn, *arrow),
            "{arrow:?} is listed, and is no chain of arrows"
        );
    }
    let all: BTreeSet<Arrow> = drawn.keys().copied().chain(at_once).collect();
    let missing: Vec<_> = made.keys().filter(|arrow| !all.contains(*arrow)).collect();
    assert!(missing.is_empty(), "not drawn: {missing:?}");
}
