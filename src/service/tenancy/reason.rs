//! Why something was changed, as the one who changed it says.

use crate::domain::document::Reader;

const REASON_MAX: usize = 1_000;

/// The field `reason`, which may be missing.
pub fn optional_reason(fields: &mut Reader<'_, '_>) -> Option<String> {
    fields.optional("reason").text_up_to(REASON_MAX).map(str::to_owned)
}

/// The field `reason` of a write that changes what somebody may do: without
/// it the audit would know who and when, but not why.
pub fn required_reason(fields: &mut Reader<'_, '_>) -> Option<String> {
    let reason = fields.required("reason").text_up_to(REASON_MAX)?;
    if reason.trim().is_empty() {
        fields.fault("reason", "must not be empty");
        return None;
    }
    Some(reason.to_owned())
}
