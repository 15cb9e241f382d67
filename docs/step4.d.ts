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

/** The answer for one backlog item. */
export interface EnrichedContext {
  /** Similar backlog items, best first. */
  similar_work: SimilarWork[];
  /** Relevant decisions, best first. */
  past_decisions: PastDecision[];
  /** Documents with relevant passages, best first. */
  technical_docs: TechnicalDoc[];
  /** What a product owner may do. */
  suggestions: string[];
  /** Problems of similar work; usually none. */
  risk_hints: RiskHint[];
  /** Items that may be the same as this one. */
  likely_duplicates: Duplicate[];
  /** Effort of similar finished work, if the sources have it. */
  effort_of_similar: SimilarEffort | null;
  /** Sources of the answer, by number. */
  citations: Citation[];
  /** Degradation: 0 is everything, 4 nothing could be looked up, 5 switched off. */
  degradation_level: number;
  /** Number of documents without vectors while documents are loaded, as a text; empty if all have them. */
  partial: string;
  /** Project that was searched. */
  project: string;
  /** Kind and sources of each of `suggestions`, in the same order. */
  suggestion_details: Suggestion[];
  /** Empty: Step 5 fills it. */
  risk_flags: unknown[];
  /** Why the item was refused; only there if it was. */
  error?: string;
}

/** A backlog item similar to this one. */
export interface SimilarWork {
  /** Id in the source: a backlog item's id, a work item's number, a path. */
  ref: string;
  /** Title of the document, on one line. */
  title: string;
  /** Address of the document; `#` if it has none. */
  link: string;
  /** Id of the stored document. */
  document_id: string;
  /** Name of the configured source. */
  source: string;
  /** Type of the source, such as `pbi_json` or `confluence`. */
  source_type: string;
  /** ISO day of the last change. */
  updated_at: string | null;
  /** Days since the last change. */
  age_days: number | null;
  /** Numbers of `citations`, one for each sentence or passage in order. */
  citations: number[];
  /** 0 to 100, calibrated: of pairs at 80 four of five are about the same or related work. */
  similarity: number;
  /** Short reason for showing it; empty if there is none beside the similarity. */
  why: string;
  /** `meaning` (vectors were compared) or, without an embedder, `words`. */
  similarity_by: "meaning" | "words";
  /** Sentences on the work and its outcome, each cited. */
  learnings: string[];
  /** The sentence most similar to this item, cited after `learnings`; none if only the title is similar. */
  relevant_sections: string[];
  /** State of the item, as the source names it. */
  status: string | null;
  /** Resolution in a word or two, if the source has such a field. */
  outcome: string | null;
  /** Whether the work was given up: removed, rejected, not to be fixed. */
  abandoned: boolean;
  /** `ref` of the item that it was closed as a duplicate of. */
  duplicate_of: string | null;
  /** Effort, such as `took 21 points, estimated 13; 12 days`, if the source has it. */
  effort: string | null;
}

/** A decision that may bind this backlog item. */
export interface PastDecision {
  /** Id in the source: a backlog item's id, a work item's number, a path. */
  ref: string;
  /** Title of the document, on one line. */
  title: string;
  /** Address of the document; `#` if it has none. */
  link: string;
  /** Id of the stored document. */
  document_id: string;
  /** Name of the configured source. */
  source: string;
  /** Type of the source, such as `pbi_json` or `confluence`. */
  source_type: string;
  /** ISO day of the last change. */
  updated_at: string | null;
  /** Days since the last change. */
  age_days: number | null;
  /** Numbers of `citations`, one for each sentence or passage in order. */
  citations: number[];
  /** 0 to 100, calibrated: of pairs at 80 four of five are about the same or related work. */
  similarity: number;
  /** Short reason for showing it; empty if there is none beside the similarity. */
  why: string;
  /** First sentences of the decision; for a rejected one the reason. */
  decision: string;
  /** Reasons for the decision, if the record has them. */
  rationale: string | null;
  /** Constraints on later work, if the record has them. */
  constraints: string[];
  /** People who decided, separated by commas. */
  assigned_architect: string | null;
  /** ISO day of the decision, if the source has it. */
  date: string | null;
  /** One of proposed, accepted, implementing, implemented, rejected, deprecated, superseded and unknown. */
  status: "proposed" | "accepted" | "implementing" | "implemented" | "rejected" | "deprecated" | "superseded" | "unknown";
  /** Successor of the decision, as the record names it. */
  superseded_by: string | null;
  /** The same as `date`. */
  decided_at: string | null;
}

/** A document with relevant passages for this backlog item. */
export interface TechnicalDoc {
  /** Id in the source: a backlog item's id, a work item's number, a path. */
  ref: string;
  /** Title of the document, on one line. */
  title: string;
  /** Address of the document; `#` if it has none. */
  link: string;
  /** Id of the stored document. */
  document_id: string;
  /** Name of the configured source. */
  source: string;
  /** Type of the source, such as `pbi_json` or `confluence`. */
  source_type: string;
  /** ISO day of the last change. */
  updated_at: string | null;
  /** Days since the last change. */
  age_days: number | null;
  /** Numbers of `citations`, one for each sentence or passage in order. */
  citations: number[];
  /** 0 to 100, calibrated: of pairs at 80 four of five are about the same or related work. */
  similarity: number;
  /** Short reason for showing it; empty if there is none beside the similarity. */
  why: string;
  /** Heading and text of each passage, each cited. */
  relevant_sections: string[];
}

/** A suggestion for a product owner, with the passage that supports it. */
export interface Suggestion {
  /** Text as in `suggestions`. */
  text: string;
  /** One of acceptance_criterion, decision, duplicate, document, risk and notice. */
  kind: "acceptance_criterion" | "decision" | "duplicate" | "document" | "risk" | "notice";
  /** `ref` of the document it is about; none for a notice. */
  ref: string | null;
  /** Numbers of `citations`; none for a notice. */
  citations: number[];
}

/** A problem of similar work. */
export interface RiskHint {
  /** One of reopened, abandoned, overran, rejected and followed. */
  type: "reopened" | "abandoned" | "overran" | "rejected" | "followed";
  /** HIGH, MEDIUM or LOW. */
  severity: "HIGH" | "MEDIUM" | "LOW";
  /** A sentence for a product owner. */
  message: string;
  /** Number of the supporting citation. */
  citation: number;
}

/** An item that may be the same as this backlog item. */
export interface Duplicate {
  /** Id in the source. */
  ref: string;
  /** Title of the item, on one line. */
  title: string;
  /** 0 to 100, as in `similar_work`. */
  similarity: number;
  /** Address of the item; `#` if it has none. */
  link: string;
  /** Id of the stored document. */
  document_id: string;
  /** State of the item, as the source names it. */
  status: string | null;
  /** `ref` of the item that it was closed as a duplicate of. */
  duplicate_of: string | null;
}

/** Effort of similar finished work. */
export interface SimilarEffort {
  /** Text for people: `five like it: median 9 days (n = 5)`. */
  text: string;
  /** Number of items with a known effort. */
  n: number;
  /** Median of the days from start to end; None if too few items have them. */
  median_days: number | null;
  /** Median of the story points; None if too few items have them. */
  median_points: number | null;
}

/** The source of a quoted sentence. */
export interface Citation {
  /** Number of the citation, from 1. */
  n: number;
  /** Id of the document in the source. */
  ref: string;
  /** Title of the document, on one line. */
  title: string;
  /** Address of the document; `#` if it has none. */
  link: string;
  /** Id of the stored document. */
  document_id: string;
  /** `document_id:ord`. */
  chunk: string;
  /** Type of the source. */
  source_type: string;
  /** Quotation of up to 200 characters, verbatim but for white space, links and emphasis; an ellipsis marks cuts. */
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
