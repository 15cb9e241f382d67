// Made from step4.schema.json by tests/typescript.py.

/** The context of a pipeline run after Step 4. */
export interface Step4Output {
  /** The step's own output. */
  enriched_pbis: {
    /** One for each scored PBI, in their order. */
    enriched_pbis: EnrichedPbi[];
  };
}

/** A PBI with what is known of it. */
export interface EnrichedPbi {
  pbi: Pbi;
  scores: Scores;
  context: EnrichedContext;
}

/** The answer for one PBI. */
export interface EnrichedContext {
  /** Items of the backlog like this one, best first. */
  similar_work: SimilarWork[];
  /** Decisions that bear on it, best first. */
  past_decisions: PastDecision[];
  /** Documents with passages that matter for it, best first. */
  technical_docs: TechnicalDoc[];
  /** What a product owner may do. */
  suggestions: string[];
  /** What went wrong with similar work; usually none. */
  risk_hints: RiskHint[];
  /** Items that may be the same as this one. */
  likely_duplicates: Duplicate[];
  /** What similar finished work took, where the sources tell. */
  effort_of_similar: SimilarEffort | null;
  /** The sources, by number. */
  citations: Citation[];
  /** 0 is everything, 4 nothing could be looked up, 5 switched off. */
  degradation_level: number;
  /** While documents are loaded, how many are found by words alone; empty if all are found by meaning, too. */
  partial: string;
  /** The project that was searched for it. */
  project: string;
  /** Kind and sources of each of `suggestions`, in the same order. */
  suggestion_details: Suggestion[];
  /** Empty: Step 5 fills it. */
  risk_flags: unknown[];
  /** Why the item was refused; only there if it was. */
  error?: string;
}

/** An item of the backlog that is much like this one. */
export interface SimilarWork {
  /** The id its source knows it by: a PBI's id, a work item's number, a path. */
  ref: string;
  /** Of the document, on one line. */
  title: string;
  /** Its address; `#` if it has none. */
  link: string;
  /** The id it is stored under. */
  document_id: string;
  /** Name of the configured source. */
  source: string;
  /** What kind of source that is, such as `pbi_json` or `confluence`. */
  source_type: string;
  /** ISO day of the last change. */
  updated_at: string | null;
  /** Days since then. */
  age_days: number | null;
  /** Numbers of `citations`, one for each sentence or section in order. */
  citations: number[];
  /** 0 to 100, calibrated: of pairs at 80 four of five are about the same or related work. */
  similarity: number;
  /** Why it is shown, in a few words; empty if nothing is known beside the similarity. */
  why: string;
  /** `meaning` (vectors were compared) or, without an embedder, `words`. */
  similarity_by: "meaning" | "words";
  /** Sentences on what was done and what came of it, each cited. */
  learnings: string[];
  /** The sentence of the item that is most like this one, cited after `learnings`; none if the title alone is. */
  relevant_sections: string[];
  /** Its state, as the source calls it. */
  status: string | null;
  /** Its resolution, in a word or two, where the source has such a field. */
  outcome: string | null;
  /** It was given up: removed, rejected, not to be fixed. */
  abandoned: boolean;
  /** `ref` of the item that it was closed as a duplicate of. */
  duplicate_of: string | null;
  /** What it took, such as `took 21 points, estimated 13; 12 days`, where the source tells. */
  effort: string | null;
}

/** A decision that may bind this PBI. */
export interface PastDecision {
  /** The id its source knows it by: a PBI's id, a work item's number, a path. */
  ref: string;
  /** Of the document, on one line. */
  title: string;
  /** Its address; `#` if it has none. */
  link: string;
  /** The id it is stored under. */
  document_id: string;
  /** Name of the configured source. */
  source: string;
  /** What kind of source that is, such as `pbi_json` or `confluence`. */
  source_type: string;
  /** ISO day of the last change. */
  updated_at: string | null;
  /** Days since then. */
  age_days: number | null;
  /** Numbers of `citations`, one for each sentence or section in order. */
  citations: number[];
  /** 0 to 100, calibrated: of pairs at 80 four of five are about the same or related work. */
  similarity: number;
  /** Why it is shown, in a few words; empty if nothing is known beside the similarity. */
  why: string;
  /** Its first sentences; of one that was rejected, why it was. */
  decision: string;
  /** Why it was decided so, where the record says. */
  rationale: string | null;
  /** What follows from it for later work, where the record says. */
  constraints: string[];
  /** Who decided, separated by commas. */
  assigned_architect: string | null;
  /** ISO day of the decision, when the source tells. */
  date: string | null;
  /** One of proposed, accepted, implementing, implemented, rejected, deprecated, superseded and unknown. */
  status: "proposed" | "accepted" | "implementing" | "implemented" | "rejected" | "deprecated" | "superseded" | "unknown";
  /** What took its place, as the record names it. */
  superseded_by: string | null;
  /** The same as `date`. */
  decided_at: string | null;
}

/** A document with the passages that matter for this PBI. */
export interface TechnicalDoc {
  /** The id its source knows it by: a PBI's id, a work item's number, a path. */
  ref: string;
  /** Of the document, on one line. */
  title: string;
  /** Its address; `#` if it has none. */
  link: string;
  /** The id it is stored under. */
  document_id: string;
  /** Name of the configured source. */
  source: string;
  /** What kind of source that is, such as `pbi_json` or `confluence`. */
  source_type: string;
  /** ISO day of the last change. */
  updated_at: string | null;
  /** Days since then. */
  age_days: number | null;
  /** Numbers of `citations`, one for each sentence or section in order. */
  citations: number[];
  /** 0 to 100, calibrated: of pairs at 80 four of five are about the same or related work. */
  similarity: number;
  /** Why it is shown, in a few words; empty if nothing is known beside the similarity. */
  why: string;
  /** Heading and text of each passage, each cited. */
  relevant_sections: string[];
}

/** Something a product owner may do, with the passage that speaks for it. */
export interface Suggestion {
  /** The same as in `suggestions`. */
  text: string;
  /** One of acceptance_criterion, decision, duplicate, document, risk and notice. */
  kind: "acceptance_criterion" | "decision" | "duplicate" | "document" | "risk" | "notice";
  /** `ref` of the document that it is about; none for a notice. */
  ref: string | null;
  /** Numbers of `citations`; none for a notice. */
  citations: number[];
}

/** Something that went wrong with similar work. */
export interface RiskHint {
  /** One of reopened, abandoned, overran, rejected and followed. */
  type: "reopened" | "abandoned" | "overran" | "rejected" | "followed";
  /** HIGH, MEDIUM or LOW. */
  severity: "HIGH" | "MEDIUM" | "LOW";
  /** A sentence for a product owner. */
  message: string;
  /** Number of the citation that shows it. */
  citation: number;
}

/** An item that may be the same as this PBI. */
export interface Duplicate {
  /** The id its source knows it by. */
  ref: string;
  /** Of the item, on one line. */
  title: string;
  /** 0 to 100, as in `similar_work`. */
  similarity: number;
  /** Its address; `#` if it has none. */
  link: string;
  /** The id it is stored under. */
  document_id: string;
  /** Its state, as the source calls it. */
  status: string | null;
  /** `ref` of the item that it was closed as a duplicate of. */
  duplicate_of: string | null;
}

/** What similar finished work took. */
export interface SimilarEffort {
  /** For a person: `five like it: median 9 days (n = 5)`. */
  text: string;
  /** So many items tell their effort. */
  n: number;
  /** From start to end, where at least one tells. */
  median_days: number | null;
  /** Story points that were used, where at least one tells. */
  median_points: number | null;
}

/** Where a sentence was taken from. */
export interface Citation {
  /** Its number, from 1. */
  n: number;
  /** The id that the source knows the document by. */
  ref: string;
  /** Of the document, on one line. */
  title: string;
  /** Address of the document; `#` if it has none. */
  link: string;
  /** The id it is stored under. */
  document_id: string;
  /** `document_id:ord`. */
  chunk: string;
  /** What kind of source it comes from. */
  source_type: string;
  /** At most 200 characters, verbatim but for white space, links and emphasis; a cut is marked with an ellipsis. */
  quoted: string;
}

/** The context of a pipeline run before Step 4. */
export interface Step4Input {
  /** The output of Step 3. */
  scored_pbis: {
    /** As Step 3 wrote them. */
    scored_pbis: ScoredPbi[];
  };
}

/** A PBI with its scores. */
export interface ScoredPbi {
  pbi: Pbi;
  scores?: Scores;
}

/** A product backlog item; it needs a title or a description. */
export interface Pbi {
  /** Its id; a number is read as text. */
  id?: string | number | null;
  /** Its title. */
  title?: string | number | null;
  /** Text, or a list of texts. */
  description?: string | unknown[] | null;
  /** A list of texts or objects, one object, or a text with one on each line. */
  acceptance_criteria?: (string | number | { [key: string]: unknown })[] | string | { [key: string]: unknown } | null;
  /** Whatever else the pipeline knows of it; it comes back as it was. */
  [key: string]: unknown;
}

/** What Step 3 found. */
export interface Scores {
  /** Any; they come back as they were. */
  [key: string]: unknown;
}

/** What is asked for one PBI; keys in snake or camel case. */
export interface EnrichmentRequest {
  pbi: Pbi;
  scores?: Scores;
  filters?: Filters;
  /** Entries of each section, at most. */
  top_k?: number;
  /** Entries by section, at most. */
  numbers?: {
    /** Of `similar_work`. */
    similar_work?: number;
    /** Of `past_decisions`. */
    past_decisions?: number;
    /** Of `technical_docs`. */
    technical_docs?: number;
  };
  /** The project that is searched. */
  project?: string;
  /** More projects to search; `*` is every one of the tenant. */
  projects?: string | string[];
  /** Ids under which the PBI itself is known; its own need not be among them. */
  exclude?: string | string[];
}

/** What may be found; all if nothing is said. */
export interface Filters {
  /** One, or a list. */
  source_types?: string | string[];
  /** One, or a list. */
  tags?: string | string[];
  /** A day, or a time with its offset. */
  since?: string | null;
  /** A day, which counts whole, or a time. */
  until?: string | null;
  /** The same two as one object. */
  date_range?: {
    /** As `since`. */
    start?: string | null;
    /** As `until`. */
    end?: string | null;
  };
  /** Keys and values. */
  metadata?: {
    /** A value that a document has to have. */
    [key: string]: unknown;
  };
}
