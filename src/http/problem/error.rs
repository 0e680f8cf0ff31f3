//! What the service could not do, as problems. Causes stay in the log.

use actix_web::http::header::{self, HeaderValue};

use super::{Kind, Problem};
use crate::service::ServiceError;

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        let detail = sentence(&error);
        match error {
            ServiceError::StoreUnavailable(_) => {
                Self::new(Kind::StoreUnavailable, "The store cannot be reached; nothing was taken.")
                    .caused_by(error)
            }
            ServiceError::Corrupt(_) => {
                Self::new(Kind::Internal, "Something stored cannot be read.").caused_by(error)
            }
            ServiceError::MaybeUnbooked => Self::new(Kind::StoreUnavailable, detail),
            ServiceError::StreamLimit => Self::new(Kind::StreamLimit, detail),
            ServiceError::Overloaded | ServiceError::Moved | ServiceError::ClockOff => {
                Self::new(Kind::Overloaded, detail)
            }
            ServiceError::Unauthenticated(_) => unauthenticated().caused_by(error),
            ServiceError::TenantSuspended => Self::new(Kind::TenantSuspended, detail),
            ServiceError::NotFound(_) => Self::new(Kind::NotFound, detail),
            ServiceError::UnknownUser => Self::new(Kind::UnknownUser, detail),
            ServiceError::UnknownPlan => Self::new(Kind::UnknownPlan, detail),
            ServiceError::UnknownModel => Self::new(Kind::UnknownModel, detail),
            ServiceError::Invalid(faults) => Self::invalid(faults),
            ServiceError::ChangedMeanwhile => Self::new(Kind::ChangedMeanwhile, detail),
            ServiceError::CursorExpired => Self::new(Kind::CursorExpired, detail),
            ServiceError::AlreadyExists(_) => Self::new(Kind::AlreadyExists, detail),
            ServiceError::SequenceRequired => Self::new(Kind::SequenceRequired, detail),
            ServiceError::KeyReused => Self::new(Kind::RequestIdReused, detail),
            ServiceError::ClockBackwards { .. } => Self::new(Kind::ClockBackwards, detail),
            ServiceError::NoTestTenant => Self::new(Kind::Forbidden, detail),
        }
    }
}

/// The same answer whatever is wrong with the credentials: it helps those who
/// own them no less, and those who guess not at all.
fn unauthenticated() -> Problem {
    let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
    Problem::new(Kind::Unauthenticated, "These credentials are not accepted.")
        .with_header(header::WWW_AUTHENTICATE, challenge)
}

/// The error's own words as a sentence.
fn sentence(error: &ServiceError) -> String {
    let text = error.to_string();
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).chain(['.']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::PLAIN;

    #[test]
    fn internal_text_never_leaves() {
        let secret = "disk I/O error in /var/lib/secret.db";
        for error in [ServiceError::StoreUnavailable(secret.into()), ServiceError::Corrupt(secret.into())] {
            let reply = Problem::from(error).into_reply(&PLAIN);
            let body = String::from_utf8(reply.body.to_vec()).unwrap();
            assert!(!body.contains("secret"), "{body}");
        }
    }

    #[test]
    fn what_is_known_about_the_error_is_a_sentence() {
        assert_eq!(sentence(&ServiceError::NotFound("plan")), "There is no such plan.");
    }
}
