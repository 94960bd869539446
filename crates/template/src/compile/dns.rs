//! Records of DNS messages (RFC 1035 section 4).

use super::Builder;
use super::fields::Place;
use crate::language::ast::{Inner, Item, Value, ValueKind};
use crate::language::error::{Checked, Fault, WarningKind};
use crate::proto::{Field, QUESTION, RECORD};

/// The name of a question that has none, as in trafgen.
const DEFAULT_NAME: &[u8] = b"www.netsniff-ng.com";
const MOST_LABEL_BYTES: usize = 63;
const MOST_NAME_BYTES: usize = 255;

/// The sections in their order on the wire, with the names that they are given by and the field that counts them.
const SECTIONS: [(&[&str], &str); 4] = [
    (&["qry", "query"], "qdcount"),
    (&["ans", "answer"], "ancount"),
    (&["auth"], "nscount"),
    (&["add"], "arcount"),
];

impl Builder<'_> {
    /// Adds the records, sorted into their sections, and counts them.
    pub(super) fn dns_records(&mut self, records: &[&Item]) -> Checked<()> {
        let layer = self.layers.len() - 1;
        if let Some(second) = records.get(1) {
            let message = "a message may have several records; trafgen crashes";
            self.warnings.add(WarningKind::DnsRecords, second.span, message);
        }
        for record in records {
            if !SECTIONS.iter().any(|(names, _)| names.contains(&record.name.as_str())) {
                let known = SECTIONS.iter().flat_map(|(names, _)| names.iter().copied());
                let message = format!("dns has no record {}", record.name);
                return Err(Fault::at(record.span, message)
                    .expected("one of qry, ans, auth, add")
                    .nearest(&record.name, known));
            }
        }
        for (index, (names, count)) in SECTIONS.iter().enumerate() {
            let section = records.iter().filter(|record| names.contains(&record.name.as_str()));
            let mut number = 0;
            for record in section {
                self.record(record, index == 0)?;
                number += 1;
            }
            self.set(layer, count, number, false);
            if *count == "ancount" && number > 0 {
                self.set(layer, "qr", 1, false);
            }
        }
        self.layers[layer].len = self.bytes.len() - self.layers[layer].at;
        Ok(())
    }

    fn record(&mut self, record: &Item, question: bool) -> Checked<()> {
        let mut name = None;
        let mut data = None;
        let mut fields = Vec::new();
        for inner in record.inner.iter().flatten() {
            let Inner::Item(item) = inner else {
                return Err(
                    Fault::at(record.span, "a record holds fields").expected("`name=`, `type=` and others")
                );
            };
            match (item.name.as_str(), &item.value) {
                ("name", Some(value)) => name = Some(encode(text(value)?, value)?),
                ("data", Some(value)) if !question => data = Some((None, raw(value)?)),
                ("addr" | "ns" | "cname" | "ptr", None) if !question => data = Some(rdata(item)?),
                (_, Some(_)) => fields.push(item),
                _ => return Err(unknown(item, question)),
            }
        }
        let name = match name {
            Some(name) => name,
            None => self.default_name(record, question)?,
        };
        self.append(&name, record.span)?;
        let table = if question { QUESTION } else { RECORD };
        let at = self.bytes.len();
        self.grow(if question { 4 } else { 10 }, record.span)?;
        for field in table {
            self.put_default(at, field);
        }
        if let Some((kind, bytes)) = &data {
            self.put_named(at, table, "type", kind.unwrap_or(0));
            self.put_named(at, table, "len", bytes.len() as u32);
            self.append(bytes, record.span)?;
        }
        for item in fields {
            let Some(field) = table.iter().find(|field| field.names.contains(&item.name.as_str())) else {
                return Err(unknown(item, question));
            };
            if let Some(value) = &item.value {
                self.assign(Place { at: at + field.at as usize, field }, item, value)?;
            }
        }
        Ok(())
    }

    fn default_name(&mut self, record: &Item, question: bool) -> Checked<Vec<u8>> {
        if !question {
            return Ok(vec![0]);
        }
        let message = "the default name is encoded as labels; trafgen stores it raw";
        self.warnings.add(WarningKind::DnsName, record.span, message);
        labels(DEFAULT_NAME).map_err(|why| Fault::at(record.span, why))
    }

    fn put_default(&mut self, at: usize, field: &'static Field) {
        if let crate::proto::Default::Number(number) = field.default {
            self.put(Place { at: at + field.at as usize, field }, u128::from(number));
        }
    }

    fn put_named(&mut self, at: usize, table: &'static [Field], name: &str, number: u32) {
        if let Some(field) = table.iter().find(|field| field.names.contains(&name)) {
            self.put(Place { at: at + field.at as usize, field }, u128::from(number));
        }
    }
}

/// The type and the data of `addr(...)`, `ns(...)`, `cname(...)` and `ptr(...)`.
fn rdata(item: &Item) -> Checked<(Option<u32>, Vec<u8>)> {
    let value = match item.inner.as_deref() {
        Some([Inner::Value(value)]) => value,
        _ => {
            return Err(
                Fault::at(item.span, format!("{} takes one value", item.name)).expected("`(` VALUE `)`")
            );
        }
    };
    let kind = match (item.name.as_str(), &value.kind) {
        ("addr", ValueKind::Ipv4(address)) => return Ok((Some(1), address.to_vec())),
        ("addr", ValueKind::Ipv6(address)) => return Ok((Some(28), address.to_vec())),
        ("addr", _) => {
            return Err(Fault::at(value.span, "this is no address").expected("an IPv4 or IPv6 address"));
        }
        ("ns", _) => 2,
        ("cname", _) => 5,
        _ => 12,
    };
    Ok((Some(kind), encode(text(value)?, value)?))
}

fn text(value: &Value) -> Checked<&[u8]> {
    match &value.kind {
        ValueKind::Text(text) => Ok(text),
        _ => Err(Fault::at(value.span, "this is no name").expected("a string such as \"www.example.org\"")),
    }
}

/// Data as it stands.
fn raw(value: &Value) -> Checked<Vec<u8>> {
    match &value.kind {
        ValueKind::Text(text) => Ok(text.clone()),
        ValueKind::Ipv4(address) => Ok(address.to_vec()),
        ValueKind::Ipv6(address) => Ok(address.to_vec()),
        ValueKind::Mac(address) => Ok(address.to_vec()),
        _ => Err(Fault::at(value.span, "this is no data").expected("a string or an address")),
    }
}

fn encode(name: &[u8], value: &Value) -> Checked<Vec<u8>> {
    labels(name).map_err(|why| Fault::at(value.span, why))
}

/// A name as labels with their lengths; a dot at the end changes nothing, and an empty name is the root.
fn labels(name: &[u8]) -> Result<Vec<u8>, String> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    let mut out = Vec::with_capacity(name.len() + 2);
    for label in name.split(|&byte| byte == b'.').filter(|_| !name.is_empty()) {
        if label.is_empty() || label.len() > MOST_LABEL_BYTES {
            return Err(format!(
                "a part of the name has {} letters: 1 to {MOST_LABEL_BYTES} are possible",
                label.len()
            ));
        }
        out.push(label.len() as u8);
        out.extend_from_slice(label);
    }
    out.push(0);
    if out.len() > MOST_NAME_BYTES {
        return Err(format!("the name takes {} bytes: {MOST_NAME_BYTES} are possible", out.len()));
    }
    Ok(out)
}

fn unknown(item: &Item, question: bool) -> Box<Fault> {
    let known: &[&str] = match question {
        true => &["name", "type", "class"],
        false => &["name", "type", "class", "ttl", "len", "data", "addr", "ns", "cname", "ptr"],
    };
    let message = format!("the record has no {}", item.name);
    let fault = Fault::at(item.span, message).expected(format!("one of {}", known.join(", ")));
    fault.nearest(&item.name, known.iter().copied())
}
